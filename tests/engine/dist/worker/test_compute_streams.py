"""Gradients on a GPU run beside copies and averages, shown with a CUDA that runs no more than a program waits for."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from dsgd.engines.dist.worker import compute as compute_module
from dsgd.engines.dist.worker.averaging import Groups
from dsgd.engines.dist.worker.batches import Batches
from dsgd.engines.dist.worker.compute import Compute
from dsgd.engines.dist.worker.device_vectors import DeviceThread
from dsgd.engines.rules.marks import Diverged
from dsgd.problem.problem import Problem
from tests.support.fake_cuda import FakeCuda
from tests.support.networks import problem_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: used.append((tensor, stream)))
    used.clear()
    return FakeCuda(monkeypatch)


used: list[tuple[Tensor, Any]] = []


@pytest.fixture
def order(cuda: FakeCuda) -> list[str]:
    return []


def queue(order: list[str], what: str) -> None:
    torch.accelerator.current_stream(CUDA).queue(lambda: order.append(what))  # pyright: ignore


def computing(order: list[str], monkeypatch: pytest.MonkeyPatch, late: bool) -> Compute:
    """Return a Compute whose gradients are on streams, with tensors on the CPU."""
    monkeypatch.setattr(Problem, "to", lambda problem, device: None)
    monkeypatch.setattr(compute_module, "Batches", lambda data, dtype, devices: Batches(data, dtype, [CPU]))
    of = problem_of(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
    loss = of.data.loss
    monkeypatch.setattr(of.data, "loss", lambda *both: queue(order, "gradient") or loss(*both), raising=False)
    compute = Compute(of, [CUDA], Groups(0, 1), late=late)
    compute._replicas[0].device = CPU  # where its tensors are
    return compute


@pytest.mark.parametrize("late", [True, False])
def test_a_gradient_begins_after_its_caller_s_work_and_no_copy_waits_for_it(
    late: bool, order: list[str], cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = computing(order, monkeypatch, late)
    problem, queued, goes_on = compute._problem, threading.Event(), threading.Event()
    loss = problem.data.loss

    def slow_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        found = loss(outputs, targets)
        queued.set()
        assert goes_on.wait(60)
        return found

    monkeypatch.setattr(problem.data, "loss", slow_loss, raising=False)
    copies = DeviceThread(CUDA, "copies")
    queue(order, "step")
    gradient = compute.gradient(problem.start, problem.start_buffers, 0, 0)
    assert queued.wait(60)
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr(Tensor, "is_cpu", False)
        copied = copies.submit(lambda x: (queue(order, "copy"), {1: x})[1], torch.zeros(1)).result()
        assert [stream for tensor, stream in used if tensor is copied[1]] == [cuda.default]
    assert order == ["step", "copy"]
    goes_on.set()
    g = gradient.result()
    assert [(tensor is g, stream) for tensor, stream in used if tensor is g] == [(True, cuda.default)]
    assert order == (["step", "copy"] if late else ["step", "copy", "gradient"])
    copies.submit(lambda x: queue(order, "arrival"), {1: torch.zeros(1)}).result()
    queue(order, "next step")
    cuda.run()
    assert order == ["step", "copy", *(["arrival", "gradient"] if late else ["gradient", "arrival"]), "next step"]
    copies.close()
    compute.close()


def test_a_loss_is_read_once_the_next_gradient_is_queued(
    order: list[str], cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the device has work while the host reads, and makes the step; no more than one gradient is ahead."""
    compute = computing(order, monkeypatch, late=True)
    start = compute._problem.start, compute._problem.start_buffers
    for step in range(3):
        compute.gradient(*start, 0, step).result()
        queue(order, f"step {step}")
        assert order == [["gradient", f"step {done}"][which] for done in range(step) for which in (0, 1)][:-1]
    assert compute.passes.busy_s == pytest.approx(2 / 1000)  # those of two gradients with one operation each
    compute.passes.loss_limit = 0.0
    with pytest.raises(Diverged, match="the loss of the mini-batch of step 2 is"):
        compute.gradient(*start, 0, 3).result()
    compute.close()
