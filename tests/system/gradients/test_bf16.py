"""Compiled kernels in bf16: right to the rounding of factors, the same bits whatever is computed beside them."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dsgd.gradients import choice
from dsgd.gradients.choice import choose_evaluator
from dsgd.gradients.compiled import CompiledEvaluator
from dsgd.gradients.evaluators import PendingGradient
from dsgd.problem.problem import Problem, build_problem
from tests.support.each_row import each_row
from tests.support.kernels import require_amx
from tests.support.networks import CLASSES
from tests.support.simulate import experiment, simulate
from tests.unit.gradients.test_compiled import Gated, Small, networks, problem_with
from tests.unit.gradients.test_evaluators import evaluate, pending_gradients
from tests.unit.gradients.test_side_by_side import torch_threads

BF16 = "precision=bf16"
ROUNDING = 2.0**-8  # relative, at most half of it, of each factor and each number that is kept


@pytest.fixture(autouse=True)
def _amx(request: pytest.FixtureRequest) -> None:
    if "without" not in request.node.name:
        require_amx()


def assert_near(module: nn.Module, batch_size: int, tolerance: float) -> None:
    """Hold gradients, statistics and losses against the module's own in double precision: each parameter's gradient, in
    the norm, to a share of the gradient of all."""
    of, exact = (problem_with(copy.deepcopy(module), batch_size, precision) for precision in (BF16, "precision=fp64"))
    expected = pending_gradients(exact, 2)
    pending = [
        PendingGradient(item.rank, item.step, item.snapshot.float(), item.buffers.float())
        for item in expected
        if item.snapshot is not None
    ]
    evaluate("compiled", of, [pending])
    evaluate("loop", exact, [expected])
    for item, right in zip(pending, expected, strict=True):
        assert item.value is not None
        assert right.value is not None
        for slot in of.parameters:
            off = float((slot.view(item.value) - slot.view(right.value)).norm())
            assert off <= tolerance * float(right.value.norm()), slot.path
        assert item.loss == pytest.approx(right.loss, rel=4 * ROUNDING)
        torch.testing.assert_close(item.buffers.double(), right.buffers, rtol=4 * ROUNDING, atol=4 * ROUNDING)


@settings(max_examples=6, derandomize=True)
@given(data=st.data())
def test_convolutions_of_any_shape_are_right_to_rounding(data: st.DataObject) -> None:
    """Any size, stride, padding, dilation and number of channels, on images that are no squares; a linear layer."""

    def pair(least: int, most: int) -> tuple[int, int]:
        return data.draw(st.integers(least, most)), data.draw(st.integers(least, most))

    groups = data.draw(st.sampled_from([1, 1, 2, 3]))
    middle, outputs = (groups * data.draw(st.sampled_from([1, 2, 5, 16, 17, 23])) for _ in range(2))
    kernel, stride, padding, dilation = pair(1, 4), pair(1, 3), pair(0, 3), pair(1, 2)
    layers = [
        nn.Conv2d(1, middle, (1, 2), padding=1),
        nn.Conv2d(middle, outputs, kernel, stride, padding, dilation, groups),
    ]
    layers += [
        nn.Conv2d(outputs, 7, 1, bias=False),
        nn.Flatten(),
    ]  # no ReLU: where rounding changes a sign it has no bound
    try:
        width = nn.Sequential(*layers)(torch.zeros(1, 1, 8, 8)).numel()
    except RuntimeError:  # a kernel that is larger than the image
        return
    assert_near(nn.Sequential(*layers, nn.Linear(width, CLASSES)), data.draw(st.integers(2, 70)), 6 * ROUNDING)


@settings(max_examples=4, derandomize=True)
@given(
    module=networks().filter(lambda module: not any(isinstance(part, Gated) for part in module.children())),
    batch_size=st.integers(4, 40),
)
def test_random_networks_are_right_to_rounding(module: nn.Module, batch_size: int) -> None:
    assert_near(module, batch_size, 0.15)


def test_what_is_computed_beside_it_changes_no_bit() -> None:
    of = problem_with(Small(), 37, BF16)
    alone, together = pending_gradients(of, 9), pending_gradients(of, 9)
    one = CompiledEvaluator(of, 9)
    for item in alone:
        one.evaluate([item])
    with torch_threads(2):
        two = CompiledEvaluator(of, 9)
        two.evaluate([together[index] for index in (8, 1, 5, 0, 7)])
        two.evaluate([together[index] for index in (3, 6, 2, 4)])
    for item, other in zip(alone, together, strict=True):
        assert item.value is not None
        assert other.value is not None
        assert torch.equal(item.value, other.value)
        assert torch.equal(item.buffers, other.buffers)


def test_a_run_is_the_same_twice_and_evaluated_in_single_precision() -> None:
    line = "model=resnet8 model.width=4 nodes=3 batch_size=8 budget.epochs=null budget.steps=4"
    overrides = [BF16, *line.split()]
    first, again = (simulate(*overrides) for _ in range(2))
    assert first.simulation.chosen.why == "gradients: compiled, by AMX on cpu"
    assert torch.equal(first.x, again.x)
    assert first.marks == again.marks
    of = build_problem(experiment(*overrides, "precision=fp32"))
    assert first.marks[0]["test_accuracy"] == of.evaluate(of.start, of.start_buffers, test=True).accuracy


class Repeated(nn.Module):
    """A layer that is called twice, dropout, and a parameter that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.same = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 6, 3, padding=1)
        self.shift, self.drop = nn.Parameter(torch.linspace(1, 2, 6).view(6, 1, 1)), nn.Dropout(0.25)
        self.linear = nn.Linear(6 * 36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.drop(self.same(self.same(self.stem(x)) + self.shift)).flatten(1))


@each_row("batch_size", [5, 40])
def test_layers_called_again_dropout_and_single_parameters_are_right_to_rounding(batch_size: int) -> None:
    """The masks of dropout are those that the module itself draws."""
    assert_near(Repeated(), batch_size, 6 * ROUNDING)


def test_text_in_bf16_is_left_to_the_loop() -> None:
    text = experiment("experiment=text_small", "nodes=3", BF16)
    chosen = choose_evaluator(replace(text, gradients="auto"), build_problem(text))
    assert chosen.name == "loop"
    assert chosen.why == "gradients: loop, because compiled does not know text in bf16"


def test_without_amx_one_model_is_computed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "bf16_is_there", lambda: False)
    of: Problem = problem_with(Small(), 5, BF16)
    chosen = choose_evaluator(replace(experiment("nodes=3", BF16), gradients="auto"), of)
    assert (chosen.name, chosen.why) == ("loop", "gradients: loop, because precision=bf16 is for one model at a time")
