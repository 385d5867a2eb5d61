"""What evaluations in the coordinator cost a run, and where it evaluates."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from dsgd.engines.dist.control import Hub
from dsgd.engines.dist.coordinator import coordinator
from dsgd.engines.dist.coordinator.coordinator import Coordinator, cost_line
from dsgd.engines.dist.coordinator.messages import MessageRules
from dsgd.engines.dist.coordinator.snapshots import initial_snapshots
from dsgd.engines.dist.job import ProcessJob
from dsgd.problem.problem import build_problem
from tests.support.cases import prepared

TOKEN = bytes(32)


@pytest.mark.parametrize(
    ("evaluation_s", "run_s", "line"),
    [
        ([1.0, 2.0], 3.0, None),  # a short run
        ([10.0] * 3, 200.0, None),  # a small share
        ([10.0] * 3, 60.0, "3 evaluations in the coordinator took 30 s of 60 s; eval.every_* sets how often"),
    ],
)
def test_a_line_says_what_evaluations_cost_where_that_is_much(
    evaluation_s: list[float], run_s: float, line: str | None
) -> None:
    found = cost_line(evaluation_s, run_s)
    assert found is None if line is None else (found or "").startswith(line)


def test_the_cpu_evaluates_where_the_gpu_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers may fill it. The numbers are the same, every later mark is evaluated on the CPU, and a line says so."""
    experiment, moved = prepared("experiment=quadratic", "algo=dpsgd", "nodes=2"), list[str]()
    problem = build_problem(experiment)
    log: list[str] = []

    def evaluated(device: str) -> list[dict[str, Any]]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            devices = {0: (device,), 1: (device,)}
            job = ProcessJob(experiment, problem, listener.getsockname(), TOKEN, 60.0, 1.0, 1, devices)
            hub = Hub(listener, TOKEN, log.append, MessageRules(job))
            of = Coordinator(job, hub, log.append, None)
            marks = [of._evaluate(initial_snapshots(experiment, problem), is_first=True) for _ in range(2)]
            hub.close()
            return marks

    def to(device: torch.device) -> None:
        moved.append(str(device))
        if device.type == "cuda":
            raise torch.OutOfMemoryError("no memory is left\nfor an evaluation")

    on_cpu = evaluated("cpu")
    assert (moved, log) == ([], [])
    monkeypatch.setattr(problem, "to", to)
    monkeypatch.setattr(coordinator, "prepare", lambda precision, device: None)
    assert evaluated("cuda:0") == on_cpu
    assert moved == ["cuda:0", "cpu"]
    assert log == ["cuda:0 cannot evaluate: OutOfMemoryError: no memory is left; the CPU evaluates from now on"]


def test_evaluations_give_way_to_workers() -> None:
    """The thread that evaluates has the lowest priority: it is this one, which ends with the test."""
    experiment = prepared("experiment=quadratic", "algo=dpsgd", "nodes=2")

    def evaluate() -> int:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            devices = dict.fromkeys(range(2), ("cpu",))
            address = listener.getsockname()
            job = ProcessJob(experiment, build_problem(experiment), address, TOKEN, 60.0, 1.0, 1, devices)
            of = Coordinator(job, Hub(listener, TOKEN, print, MessageRules(job)), print, None)
            of.monitor.listen()
            next(of.run(lambda: False, print))
            of.close("failed")
            return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(evaluate).result() == 19
