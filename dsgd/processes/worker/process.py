"""How the process of a worker, server or evaluator runs, and how a worker or server joins the others."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from dsgd.data import DataLost
from dsgd.problem.precision import Unsuitable
from dsgd.processes.control.connection import CoordinatorGone
from dsgd.processes.control.frames import Message
from dsgd.processes.job import EXIT_FAILED, EXIT_OK, EXIT_ORPHANED, ProcessJob
from dsgd.processes.pairwise.plane import Plane, Unreachable
from dsgd.processes.worker.collectives import CollectiveFailed
from dsgd.processes.worker.coordinator_client import CoordinatorClient
from dsgd.processes.worker.engine import CannotGoOn

READ_CENTRE = "dsgd.read"  # a call that every server answers with its range of the centre
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


def open_plane(job: ProcessJob, node: int, client: CoordinatorClient) -> Plane:
    """Open a node's pairwise plane on the interface that reaches the coordinator, and report its address."""
    experiment = job.experiment
    plane = Plane(
        node,
        experiment.nodes + experiment.algo.servers,
        client.local_address,
        job.token,
        job.problem.dimension,
        job.problem.dtype,
        job.limits.timeout_s,
        job.limits.patience_s,
        lambda line: print(line, flush=True),
    )
    client.send("hello", role="node", node=node, host=client.local_address, port=plane.port)
    return plane


def connect_peers(plane: Plane, client: CoordinatorClient) -> Message:
    """Wait for the addresses of all nodes and connect to them; returns the coordinator's message."""
    message = client.wait_for("addresses")
    plane.connect([tuple(address) if address else None for address in message["addresses"]])
    return message
