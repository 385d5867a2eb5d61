"""In how many threads a simulation computes when nobody says so."""

from __future__ import annotations

from pathlib import Path

import torch

from dsgd.gradients.choice import choose_threads, multiply_adds
from dsgd.problem.problem import build_problem
from tests.support.command import call, summary
from tests.support.simulate import experiment

SMALL = ("model=mlp", "nodes=8")
MEDIUM = ("model=resnet8", "batch_size=4")  # 3 million multiply-adds a gradient
LARGE = ("model=mlp", "model.hidden=[1600,8000]", "nodes=2")


def test_a_model_that_gains_by_more_threads_has_them() -> None:
    for options, configured, environment, cores, threads, why in (
        (SMALL, 3, {"OMP_NUM_THREADS": "2"}, 4, 3, "as configured"),
        (SMALL, None, {"OMP_NUM_THREADS": "2,1"}, 4, 2, "as in OMP_NUM_THREADS"),
        (LARGE, None, {}, 1, 1, "on the only core"),
        (SMALL, None, {"OMP_NUM_THREADS": "0"}, 4, 1, "as the model is small: 0.08 million multiply-adds a gradient"),
        (LARGE, None, {}, 4, 4, "all cores, as the model is large (208 million"),
        ((*MEDIUM, "nodes=1"), None, {}, 4, 1, "as the model is not large: 3.01 million multiply-adds a gradient"),
        ((*MEDIUM, "nodes=8"), None, {}, 4, 4, "each with gradients of its own: 3.01 million multiply-adds"),
        ((*MEDIUM, "nodes=3"), None, {}, 4, 3, "each with gradients of its own"),
        ((*LARGE, "engine.gradients=none"), None, {}, 4, 1, "as there are no gradients"),
    ):
        run = experiment(*options)
        chosen = choose_threads(configured, environment, cores, run, build_problem(run))
        side_by_side = why.startswith("each")
        assert chosen.side_by_side == threads, why
        assert chosen.sharing == (1 if side_by_side else threads), why
        assert chosen.why.startswith(f"threads: {'up to ' if side_by_side else ''}{threads}, {why}")


def test_work_is_that_of_the_layers_with_weights() -> None:
    """A linear layer has one multiply-add for every weight and sample; a convolution for every weight and place."""
    of = build_problem(experiment("model=mlp", "model.hidden=[32]", "nodes=2", "batch_size=6"))
    assert multiply_adds(of) == 6 * (64 * 32 + 32 * 10)
    small, large = (build_problem(experiment("model=resnet8", "nodes=2", f"batch_size={b}")) for b in (5, 10))
    start = small.start.clone()
    assert 2 * multiply_adds(small) == multiply_adds(large)
    assert torch.equal(small.start, start)
    assert not any(layer._forward_hooks for layer in small.module.modules())


def test_the_choice_is_told_and_recorded(tmp_path: Path) -> None:
    for number in (1, 2):
        result = call(*SMALL, "budget.steps=1", f"engine.threads={number}", f"hydra.run.dir={tmp_path}/{number}")
        assert f"threads: {number}, as configured\n" in result.err
        assert summary(tmp_path / str(number))["threads"] == number
