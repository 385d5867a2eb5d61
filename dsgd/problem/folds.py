"""Evaluate a model on equal parts of the test set, for the error that the choice of test samples adds to a comparison.

Two models are evaluated on the same samples. How much their difference varies from part to part says how much another
test set would move it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dsgd.data.protocols import sample_losses, test_samples
from dsgd.problem.problem import Problem

FOLDS = 100  # parts of the test set, of samples that follow each other in evaluation
FOLD_FIELDS = ("test_fold_losses", "test_fold_accuracies")  # of a summary


def check_folds(problem: Problem) -> None:
    """Raise ValueError, in one line, for a test set that does not consist of so many equal parts."""
    samples = test_samples(problem.data)
    if samples % FOLDS:
        raise ValueError(
            f"eval.test_folds must be false unless {FOLDS} divides the test samples, got {samples} of them"
        )


def evaluate_folds(problem: Problem, x: Tensor, buffers: Tensor) -> dict[str, list[float] | None]:
    """Evaluate a model [d] with its buffers [nb] on each part. Returns the `FOLD_FIELDS`: mean losses and accuracies.

    Accuracies are None without classes, and both where a loss is no number."""
    data, losses, correct = problem.data, list[Tensor](), list[Tensor]()
    for outputs, labels in problem.evaluated(x, buffers, test=True):
        losses.append(sample_losses(data, outputs, labels))
        if data.classes:
            correct.append((outputs.argmax(dim=1) == labels).view(len(labels), -1).double().mean(dim=1))
    means = _means(losses)
    if not all(map(math.isfinite, means)):
        return dict.fromkeys(FOLD_FIELDS)
    return dict(zip(FOLD_FIELDS, (means, _means(correct) if correct else None), strict=True))


def _means(batches: Sequence[Tensor]) -> list[float]:
    """Return the mean of each part of all samples. batches: of values of samples [b]."""
    return torch.cat(list(batches)).double().view(FOLDS, -1).mean(dim=1).tolist()
