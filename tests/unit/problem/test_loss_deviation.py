"""The deviation of a sample's test loss in a mark is NumPy's of the losses of all test samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dsgd.problem.evaluation import measure
from dsgd.problem.problem import Sums, build_problem
from tests.support.simulate import experiment

TEXT = ("data=text", "model=gpt", "model.width=8", "data.generated_bytes=4000", "data.context=16")
OWN = ("data=import", "data.target=tests.unit.data.test_own_data.still", "data.classes=4", "batch_size=5", "model=mlp")
CASES = {"shapes": ("data=shapes", "model=mlp"), "text": TEXT, "import": OWN, "quadratic": ("experiment=quadratic",)}


@pytest.mark.parametrize("case", CASES)
def test_a_mark_has_the_deviation_of_the_losses_of_single_samples(case: str):
    """Each sample evaluated alone; of text a sample is a window, whose loss is the mean over its bytes."""
    wanted = experiment(*CASES[case], "precision=fp64", "nodes=2")
    problem = build_problem(wanted)
    x = problem.start + 0.1 * torch.randn(problem.dimension, generator=torch.Generator().manual_seed(3)).double()
    mark = measure(problem, wanted.eval, [x, x], [problem.start_buffers] * 2, None)
    whole = problem.sums(x, problem.start_buffers, test=True)
    samples = len(problem.data.test_set[0]) if case != "import" else whole.samples
    each = [problem.sums(x, problem.start_buffers, test=True, shard=(i, samples)) for i in range(samples)]
    losses = np.array([one.loss / one.samples for one in each])
    assert mark["test_loss_deviation"] == pytest.approx(losses.std(), rel=1e-6, abs=1e-12)
    assert (losses.std() > 0) == (case != "quadratic")  # which is tested on one objective


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1e200])
def test_losses_that_are_no_numbers_or_too_large_have_no_deviation(loss: float):
    problem = build_problem(experiment("experiment=quadratic"))
    assert not math.isfinite(problem.measured(Sums(loss, loss * loss, 0, 0, 1)).deviation)
