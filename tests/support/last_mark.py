"""The mark at the end of a run, handed in by processes that train nothing, to the package's own coordinator."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from dsgd.engines.dist.control import Hub
from dsgd.engines.dist.coordinator.messages import MessageRules
from dsgd.engines.dist.coordinator.monitor import RunMonitor
from dsgd.engines.dist.coordinator.shared_vectors import Spool
from dsgd.engines.dist.coordinator.snapshot_schedule import WAITING_LIMIT
from dsgd.engines.dist.coordinator.snapshots import PendingSnapshots
from dsgd.engines.dist.job import ProcessJob
from dsgd.engines.dist.worker.process import CoordinatorClient
from dsgd.experiment import Experiment
from dsgd.problem.problem import Problem

TOKEN = bytes(32)
DEADLINE_S = 300.0
STEPS = 9
COUNTERS = {"busy_s": 0.5, "staleness": [0, 0, 0], "missed": 0}


@contextmanager
def last_mark(
    experiment: Experiment,
    problem: Problem,
    vector_of: Callable[[int], Tensor],
    folder: Path,
    limit: int = WAITING_LIMIT,
    started: Callable[[], None] = lambda: None,
) -> Iterator[PendingSnapshots]:
    """Yield the mark of a run of STEPS steps, whose workers hand in these vectors [d]. folder, limit: of the spool.
    started: called once all processes are forked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        devices = dict.fromkeys(range(experiment.nodes), ("cpu",))
        job = ProcessJob(experiment, problem, listener.getsockname(), TOKEN, DEADLINE_S, 1.0, 1, devices)
        processes = []
        for rank in range(experiment.nodes):
            if (process := os.fork()) == 0:
                try:
                    _hand_in(job, rank, vector_of(rank))
                finally:
                    os._exit(0)
            processes.append(process)
        started()
        hub = Hub(listener, TOKEN, print, MessageRules(job), Spool(folder, limit, print).empty)
        monitor = RunMonitor(job, hub, print, None)
        monitor.listen()
        monitor.begin()
        mark = monitor.complete.get(timeout=DEADLINE_S)
        assert mark is not None, monitor.phase.error
        yield mark
        monitor.close("completed")
        for process in processes:
            os.waitpid(process, 0)


def _hand_in(job: ProcessJob, rank: int, x: Tensor) -> None:
    """Hand in a vector after the last step, as a worker does, and wait for the end."""
    client = CoordinatorClient(job)
    client.open_snapshot_channel(rank, shares=job.experiment.algo.lockstep)
    client.send("hello", role="node", node=rank, host="127.0.0.1", port=1, gpus=False)
    client.wait_for("addresses")
    client.send("ready")
    client.wait_for("go")
    client.send("ended", steps=STEPS, time_s=1.0)
    client.wait_for("mark")
    fields = {"key": "last", "steps": STEPS, "time_s": 1.0, "counters": COUNTERS, "extra": {}}
    client.submit(fields, {"x": x, "buffers": job.problem.start_buffers})
    client.wait_for_exit()
