"""The frame in which a worker, server or evaluator runs: its connection, its errors, its exit status."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from dsgd.data import DataLost
from dsgd.problem.precision import Unsuitable
from dsgd.processes.control.connection import CoordinatorGone
from dsgd.processes.job import EXIT_FAILED, EXIT_OK, EXIT_ORPHANED, ProcessJob
from dsgd.processes.pairwise.plane import Unreachable
from dsgd.processes.worker.collectives import CollectiveFailed
from dsgd.processes.worker.coordinator_client import CoordinatorClient
from dsgd.processes.worker.engine import CannotGoOn

ProcessMain = Callable[[ProcessJob, int, CoordinatorClient, bool], None]


def run_process(main: ProcessMain, job: ProcessJob, index: int, is_replacement: bool) -> int:
    """Run the main function of a worker, server or evaluator, and return the process's exit status.

    main: gets `job`, `index`, the connection to the coordinator and `is_replacement`. index: node of a worker or
    server, rank of an evaluator. is_replacement: the process takes the place of one that died.

    An exception is reported to the coordinator, which decides what follows, and in this process's log.
    """
    try:
        client = CoordinatorClient(job)
    except CoordinatorGone as error:
        print(error, flush=True)
        return EXIT_ORPHANED
    try:
        main(job, index, client, is_replacement)
        return EXIT_OK
    except SystemExit as ended:
        return int(ended.code or 0)
    except CoordinatorGone as error:
        print(error, flush=True)
        return EXIT_ORPHANED
    except Exception as error:  # whatever an algorithm, a model or a data set may raise
        caused_by_peer = isinstance(error, (CannotGoOn, CollectiveFailed, Unreachable))
        explains_itself = caused_by_peer or isinstance(error, (DataLost, Unsuitable))
        text = str(error) if explains_itself else f"{type(error).__name__}: {error}"
        if not explains_itself:
            print(traceback.format_exc(), flush=True)
        suspect = error.peer if isinstance(error, CannotGoOn) else None
        try:
            client.send("failed", error=" ".join(text.split()), suspect=suspect, caused_by_peer=caused_by_peer)
            client.wait_for_exit()
        except (CoordinatorGone, SystemExit):
            pass  # the process ends in any case
        return EXIT_FAILED
