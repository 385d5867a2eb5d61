"""A worker in lock-step that is lost after its last step, before what it had found has come."""

from __future__ import annotations

import socket
import time

import pytest
import torch

from dsgd.engines.dist.control import CoordinatorConnection, Hub
from dsgd.engines.dist.coordinator.messages import MessageRules
from dsgd.engines.dist.coordinator.monitor import RunMonitor
from dsgd.engines.dist.job import ProcessJob
from dsgd.problem.problem import build_problem
from tests.support.cases import prepared

TOKEN = bytes(32)
DEADLINE_S = 60.0
STEPS = 7
COUNTERS = {"busy_s": 0.5, "staleness": [0, 0, 0], "missed": 0}
FACTS = {"gpu": "NVIDIA H100", "gpu_driver": "570.86.15"}


def until(line: CoordinatorConnection, kind: str) -> None:
    while line.receive()["kind"] != kind:
        pass


@pytest.mark.parametrize("submitted", [True, False])
def test_the_last_mark_is_that_of_all_workers_or_the_run_fails(submitted: bool) -> None:
    experiment = prepared("experiment=quadratic", "algo=dpsgd", "nodes=3", f"budget.steps={STEPS}")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        problem = build_problem(experiment)
        job = ProcessJob(experiment, problem, address, TOKEN, DEADLINE_S, 1.0, 1, dict.fromkeys(range(3), ("cpu",)))
        monitor = RunMonitor(job, Hub(listener, TOKEN, print, MessageRules(job)), print, None)
        monitor.listen()
        monitor.begin()
        workers = [CoordinatorConnection(address, TOKEN, DEADLINE_S) for _ in range(3)]
        snapshots = [CoordinatorConnection(address, TOKEN, DEADLINE_S) for _ in range(3)]
        for rank, (worker, line) in enumerate(zip(workers, snapshots, strict=True)):
            line.send({"kind": "hello", "role": "snapshots", "node": rank})
            worker.send({"kind": "hello", "role": "node", "node": rank, "host": "127.0.0.1", "port": 1, "gpus": False})
        for worker in workers:
            until(worker, "addresses")
            worker.send({"kind": "gpu", "facts": FACTS})
            worker.send({"kind": "ready"})
        for worker in workers:
            until(worker, "go")
            worker.send({"kind": "ended", "steps": STEPS, "time_s": 1.0})
        vectors = {"x": torch.zeros_like(problem.start), "buffers": problem.start_buffers}
        last = {"kind": "snapshot", "key": "last", "steps": STEPS, "time_s": 1.0, "extra": {}}
        for rank in (1, 0, 2):
            until(workers[rank], "mark")
            if submitted or rank != 1:
                counters = {**COUNTERS, "gpu_peak_bytes": 1000 + rank}
                snapshots[rank].send({**last, "counters": counters}, vectors)
            if rank == 1:
                workers[rank].socket.close()
                snapshots[rank].socket.close()
        deadline = time.monotonic() + DEADLINE_S
        while monitor.phase.status == "running" and time.monotonic() < deadline:
            time.sleep(0.01)
        monitor.close(monitor.phase.status)
        for line in (*workers, *snapshots):
            line.socket.close()
    assert monitor.phase.status == ("completed" if submitted else "failed")
    assert submitted or monitor.phase.error.startswith("worker 1 ")
    assert not submitted or monitor.members.gpus() == {**FACTS, "gpu_peak_bytes": 1002}
