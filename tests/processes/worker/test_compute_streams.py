"""Gradients on a GPU run beside copies and averages, shown with a CUDA that runs no more than a program waits for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dsgd.problem.problem import Problem
from dsgd.processes.worker import compute as compute_module
from dsgd.processes.worker.batches import Batches
from dsgd.processes.worker.collectives import Groups
from dsgd.processes.worker.compute import Compute
from dsgd.processes.worker.device_thread import DeviceThread
from tests.support.fake_cuda import FakeCuda
from tests.support.networks import problem_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: used.append((tensor, stream)))
    used.clear()
    return FakeCuda(monkeypatch)


used: list[tuple[Tensor, Any]] = []


def test_a_gradient_begins_after_its_caller_s_work_and_no_copy_waits_for_it(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def queue(what: str) -> None:
        torch.cuda.current_stream(CUDA).queue(lambda: order.append(what))  # pyright: ignore

    monkeypatch.setattr(Problem, "to", lambda problem, device: None)
    monkeypatch.setattr(compute_module, "Batches", lambda data, dtype, devices: Batches(data, dtype, [CPU]))
    of = problem_of(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
    loss = of.data.loss
    monkeypatch.setattr(of.data, "loss", lambda *both: queue("gradient") or loss(*both), raising=False)
    compute = Compute(of, [CUDA], Groups(0, 1))
    compute._replicas[0].device = CPU  # where its tensors are
    queue("step")
    g = compute.gradient(of.start, of.start_buffers, 0, 0).result()
    assert [(tensor is g, stream) for tensor, stream in used] == [(True, cuda.default)]
    assert order == []
    monkeypatch.setattr(Tensor, "is_cuda", True)
    copies = DeviceThread(CUDA, "copies")
    copies.submit(lambda x: queue("copy"), torch.zeros(1)).result()
    assert order == ["step", "copy"]
    monkeypatch.setattr(Tensor, "is_cuda", False)
    queue("next step")
    copies.submit(lambda x: queue("arrival"), {1: torch.zeros(1)}).result()
    assert order == ["step", "copy", "arrival"]
    cuda.run()
    assert order[3:] == ["gradient", "next step"] or order[3:] == ["next step", "gradient"]
    copies.close()
    compute.close()


def test_a_gradient_waits_for_the_step_before_it(cuda: FakeCuda) -> None:
    streams = compute_module.ComputeStreams([CUDA])
    order: list[str] = []
    cuda.default.queue(lambda: order.append("step"))
    computed = streams.call(lambda: torch.zeros(1))
    cuda.default.queue(lambda: order.append("next step"))
    streams.enter()
    computed()
    torch.cuda.current_stream(CUDA).synchronize()
    assert order == ["step"]
