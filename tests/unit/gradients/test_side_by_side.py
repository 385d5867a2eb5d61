"""Gradients side by side: the same bits, really at once, and nothing that a thread raises is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from dsgd.engines.sim.simulation import Simulation
from dsgd.gradients.choice import choose_evaluator
from dsgd.gradients.evaluators import LoopEvaluator, SideBySide
from dsgd.gradients.examination import serves_side_by_side
from dsgd.problem.problem import Problem
from tests.support import own_modules
from tests.support.each_row import each_row
from tests.support.kernels import require_kernels
from tests.support.networks import dropping, problem_of
from tests.support.simulate import experiment
from tests.unit.gradients.test_evaluators import pending_gradients

AWAITED_S = 60.0  # for what is never late unless it never comes


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_threads_go_on_at_once_each_with_its_share_of_torchs() -> None:
    meeting = threading.Barrier(3)

    def meet(number: int) -> tuple[int, int]:
        meeting.wait(AWAITED_S)  # would break if one thread had to end before another began
        return number, torch.get_num_threads()

    with torch_threads(6):
        assert SideBySide(3).starmap(meet, ((number,) for number in range(6))) == [(n, 2) for n in range(6)]
        assert torch.get_num_threads() == 6


@each_row("count", [1, 2])
def test_the_first_error_of_threads_is_raised_when_all_have_ended(count: int) -> None:
    ended = set[str]()

    def fail(row: int, name: str) -> None:
        try:
            if row in (2, 3):
                raise ValueError(name)
        finally:
            ended.add(name)

    def rows() -> Iterator[tuple[int, str]]:
        yield from enumerate("abcdef")

    side_by_side = SideBySide(count)
    with pytest.raises(ValueError, match="c"):
        side_by_side.starmap(fail, rows())
    assert ended == set("abc" if count == 1 else "abcdef")
    with pytest.raises(ZeroDivisionError):  # of data that cannot be read
        side_by_side.starmap(fail, ((row, str(1 // (1 - row))) for row in range(3)))
    assert side_by_side.starmap(max, [(1, 2), (4, 3)]) == [2, 4]


def loop_gradients(of: Problem, side_by_side: int) -> list[torch.Tensor]:
    evaluator = LoopEvaluator(of, side_by_side=side_by_side)
    items = pending_gradients(of, 7)
    for group in (items[:3], items[3:]):
        evaluator.evaluate(group)
    return [tensor for item in items for tensor in (item.value, item.buffers, item.loss) if tensor is not None]


def test_the_number_of_loops_side_by_side_changes_no_bit() -> None:
    """With weight decay, and a norm whose buffers its own code changes."""
    of = problem_of(own_modules.Centred(), "optimizer.weight_decay=0.1")
    assert serves_side_by_side(of)
    alone, together = loop_gradients(of, 1), loop_gradients(of, 3)
    assert len(alone) == 3 * 7
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_what_copies_have_in_common_is_computed_by_one_loop() -> None:
    """Random streams of the process, memory outside of the module, what cannot be copied."""
    for module in (dropping(), own_modules.TorchNoise(), own_modules.NumpyNoise(), own_modules.Logging()):
        of = problem_of(module)
        assert not serves_side_by_side(of)
        with torch_threads(2):
            chosen = choose_evaluator(experiment("nodes=3", "engine.gradients=loop"), of)
            assert (chosen.name, chosen.threads, torch.get_num_threads()) == ("loop", 2, 2)


@pytest.mark.parametrize(("gradients", "algo"), [("compiled", "gossip"), ("loop", "sync")])
def test_a_whole_run_has_the_same_bits_on_any_number_of_cores(gradients: str, algo: str) -> None:
    """Marks included, which evaluate models on several cores as well."""
    if gradients == "compiled":
        require_kernels()
    options = (f"algo={algo}", "nodes=5", "model=resnet8", "model.width=4", "batch_size=5", "budget.steps=3")
    run = experiment(*options, "eval.every_steps=1", "eval.workers=all", f"engine.gradients={gradients}")
    ends = []
    for cores in (1, 2, 8):
        with torch_threads(1):
            simulation = Simulation(run, cores=cores)
        assert simulation.chosen.name == gradients
        assert simulation.chosen.threads == min(cores, 5)
        marks = list(simulation.run())
        ends.append((marks, [node.worker.x for node in simulation.machine.nodes]))
    for marks, xs in ends[1:]:
        assert marks == ends[0][0]
        assert all(torch.equal(x, right) for x, right in zip(xs, ends[0][1], strict=True))
