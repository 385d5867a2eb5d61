"""CUDA graphs of gradients, on a CUDA that runs what is queued in the worst order that the program allows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dsgd.gradients import device_graphs
from dsgd.gradients.device_graphs import CapturedPass, GraphEvaluator, Uncapturable
from dsgd.gradients.evaluators import PendingGradient
from dsgd.problem.problem import Problem
from tests.support.each_row import each_row
from tests.support.fake_cuda import FakeCuda
from tests.support.networks import problem_of

CUDA = torch.device("cuda")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def test_graphs_that_draw_side_by_side_have_each_their_own_seed(cuda: FakeCuda) -> None:
    """Also where all graphs of a generator read their seed at one place, as before torch 2.12."""
    seen: list[list[int]] = [[], [], []]
    passes = [CapturedPass(lambda of=of: cuda.draw(of), CUDA) for of in seen]
    for of in seen:
        of.clear()  # of the warm-up
    for step in range(2):
        for rank, captured in enumerate(passes):
            with captured.stream:
                captured.replay(10 * step + rank)
    cuda.run()
    assert seen == [[0, 10], [1, 11], [2, 12]]


def test_a_pass_leaves_torch_s_random_stream_alone(cuda: FakeCuda) -> None:
    cuda.generator.manual_seed(5)
    CapturedPass(lambda: cuda.draw([]), CUDA).replay(7)
    seen: list[int] = []
    cuda.draw(seen)
    cuda.run()
    assert seen == [5]


def test_a_capture_that_fails_names_its_cause_and_leaves_stream_and_generator_usable(cuda: FakeCuda) -> None:
    def function() -> None:
        cuda.draw([])
        cuda.fail(RuntimeError("Cannot copy between CPU and CUDA tensors during CUDA graph capture"))

    with pytest.raises(RuntimeError, match=r"^Cannot copy between"):
        CapturedPass(function, CUDA)
    assert torch.accelerator.current_stream(CUDA) is cuda.default
    seen: list[int] = []
    cuda.draw(seen)
    cuda.run()
    assert seen == [0]


@each_row(("fails_at", "streams"), [(0, None), (1, 1), (5, 5), (8, 8)])
def test_where_memory_ends_the_lanes_that_there_are_serve(
    fails_at: int, streams: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Problem] = []

    def lane(problem: Problem) -> object:
        if len(made) == fails_at:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        made.append(problem)
        return object()

    monkeypatch.setattr(device_graphs, "_Lane", lane)
    monkeypatch.setattr(Problem, "live_on", lambda problem, device: None)
    of = problem_of(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
    if streams is None:
        with pytest.raises(Uncapturable, match="out of memory"):
            GraphEvaluator(of, CUDA)
    else:
        assert GraphEvaluator(of, CUDA).streams == streams


def test_whether_a_module_draws_is_known_before_its_first_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[Any] = []
    monkeypatch.setattr(device_graphs, "_Lane", lambda problem: known.append(problem.draws))
    for rate, draws in ((0.5, True), (0.0, False)):
        of = problem_of(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(rate), torch.nn.Linear(64, 10)))
        GraphEvaluator(of, torch.device("cpu"))
        assert known.pop() is draws


def pending_of(of: Problem, count: int) -> list[PendingGradient]:
    places = [(place % 3, place // 3) for place in range(count)]
    return [PendingGradient(rank, step, of.start + rank, of.start_buffers.clone()) for rank, step in places]


def test_a_loss_waits_for_its_gradient_and_those_before_it_on_its_stream_alone(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors are on the CPU; of the work on the device only the replays are queued."""
    empty, to = torch.empty, Tensor.to
    monkeypatch.setattr(torch, "empty", lambda *sizes, pin_memory=False, **of: empty(*sizes, **of))
    monkeypatch.setattr(Tensor, "to", lambda x, *of, **how: x.clone() if of[0] == CUDA else to(x, *of, **how))
    monkeypatch.setattr(Problem, "live_on", lambda problem, device: setattr(problem, "device", device))
    of = problem_of(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
    of._draws = False
    replayed: list[int] = []
    loss = of.data.loss
    monkeypatch.setattr(of.data, "loss", lambda *both: cuda.draw(replayed) or loss(*both), raising=False)
    evaluator = GraphEvaluator(of, CUDA, streams=3)
    cuda.run()
    replayed.clear()
    pending = pending_of(of, 6)
    evaluator.evaluate(pending)
    assert replayed == []
    pending[4].read_loss()
    assert len(replayed) == 2  # those of pending 1 and 4
    cuda.default.synchronize()  # on which the gradients are used: all are there
    assert len(replayed) == 6


def test_batches_of_all_pending_gradients_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    of = problem_of(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
    evaluator, several, made = GraphEvaluator(of, torch.device("cpu")), type(of.data).batches, list[Any]()  # pyright: ignore
    monkeypatch.setattr(type(of.data), "batches", lambda *of: made.append(of[1:]) or several(*of))  # pyright: ignore
    monkeypatch.delattr(type(of.data), "batch")
    pending = pending_of(of, 3)
    points = [item.snapshot for item in pending]
    evaluator.evaluate(pending)
    monkeypatch.undo()
    assert made == [([0, 1, 2], [0, 0, 0])]
    for item, x in zip(pending, points, strict=True):
        assert x is not None
        assert item.value is not None
        g, loss = of.gradient_and_loss(x, of.start_buffers.clone(), item.rank, item.step)
        assert torch.equal(item.value, g)
        assert item.read_loss() == float(loss)
