"""What modules draw in training: by the worker and its step alone, whatever else has drawn."""

from __future__ import annotations

import pytest
import torch

from tests.support.networks import dropping, problem_of
from tests.support.simulate import simulate

LINE = ("model=import", "model.target=tests.support.networks.dropping", "nodes=2", "budget.steps=6", "algo=localsgd")


def test_a_gradient_is_that_of_its_worker_and_step() -> None:
    problem = problem_of(dropping())
    x, buffers = problem.start.clone(), problem.start_buffers.clone()
    first = problem.gradient(x, buffers, 1, 4)
    others = [problem.gradient(x, buffers, *place) for place in ((0, 4), (1, 5))]
    torch.rand(7)
    before = torch.get_rng_state()
    again = problem.gradient(x, buffers, 1, 4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    inputs, targets = problem.data.batch(1, 4)
    without = problem.gradient_of_batch(x, buffers, inputs, targets)[0]
    assert not torch.equal(first, without)
    assert not any(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("gradients", ["loop", "compiled", "graphs"])
def test_a_run_is_the_same_again_and_with_any_evaluator(gradients: str) -> None:
    expected = simulate(*LINE, "engine.gradients=loop")
    torch.rand(3)
    rounding = 1e-5 if gradients == "compiled" else 0.0  # the kernels add in another order
    found = simulate(*LINE, f"engine.gradients={gradients}")
    torch.testing.assert_close(found.x, expected.x, rtol=0, atol=rounding)
    assert not torch.equal(simulate(*LINE, "engine.gradients=loop", "seed=1").x, expected.x)
