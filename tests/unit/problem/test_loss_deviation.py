"""The deviation of a sample's test loss in a mark is NumPy's of the losses of all test samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dsgd.data.protocols import evaluation_batches
from dsgd.problem.evaluation import measure
from dsgd.problem.problem import build_problem
from tests.support.each_row import each_row
from tests.support.simulate import experiment

TEXT = ("data=text", "model=gpt", "model.width=8", "data.generated_bytes=4000", "data.context=16")
OWN = ("data=import", "data.target=tests.unit.data.test_own_data.still", "data.classes=4", "batch_size=5", "model=mlp")
CASES = {"shapes": ("data=shapes", "model=mlp"), "text": TEXT, "import": OWN, "quadratic": ("experiment=quadratic",)}


@each_row("case", CASES)
def test_a_mark_has_the_deviation_of_the_losses_of_single_samples(case: str):
    """Each sample evaluated alone; of text a sample is a window, whose loss is the mean over its bytes."""
    wanted = experiment(*CASES[case], "precision=fp64", "nodes=2")
    problem = build_problem(wanted)
    x = problem.start + 0.1 * torch.randn(problem.dimension, generator=torch.Generator().manual_seed(3)).double()
    mark = measure(problem, wanted.eval, [x, x], [problem.start_buffers] * 2, None)
    problem.state.bind(x, problem.start_buffers)
    problem.state.train(False)
    samples = [
        (inputs[i : i + 1], targets[i : i + 1])
        for inputs, targets in evaluation_batches(problem.data, test=True)
        for i in range(len(inputs))
    ]
    with torch.no_grad():
        losses = np.array([float(problem.data.loss(problem.module(input), target)) for input, target in samples])
    assert mark["test_loss_deviation"] == pytest.approx(losses.std(), rel=1e-6, abs=1e-12)
    assert (losses.std() > 0) == (case != "quadratic")  # which is tested on one objective


@each_row("entry", [math.nan, math.inf, 1e100])
def test_losses_that_are_no_numbers_or_too_large_have_no_deviation(entry: float):
    problem = build_problem(experiment("experiment=quadratic", "precision=fp64"))
    x = torch.full_like(problem.start, entry)
    assert not math.isfinite(problem.evaluate(x, problem.start_buffers, test=True).deviation)
