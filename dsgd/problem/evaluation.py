"""Measurements of an evaluation mark: the output model, the workers' own models, and their distances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from dsgd.experiment import Evaluation
from dsgd.problem.problem import Measured, Problem

# the accuracy of each of several models on the test set, from their vectors [d] and buffers [nb]
AccuraciesOf = Callable[[Sequence[Tensor], Sequence[Tensor]], list[float]]

FIELDS = (
    "train_loss",
    "test_loss",
    "test_accuracy",
    "test_top5",
    "worker_accuracy_min",
    "worker_accuracy_mean",
    "worker_accuracy_max",
    "consensus_distance",
    "discrepancy",
)


def measure(
    problem: Problem,
    rule: Evaluation,
    xs: Sequence[Tensor],
    buffers: Sequence[Tensor],
    centre: Tensor | None,
    accuracies_of: AccuraciesOf | None = None,
) -> dict[str, float | None]:
    """Measure the `FIELDS` of a mark from every worker's vector [d] and buffers [nb].

    centre: [d], the output model of methods that have one; None: the mean of the workers' vectors. The accuracy of a
    worker is that of its own vector with its own batch-norm statistics. accuracies_of: faster than one by one.
    consensus_distance: sqrt(mean_i |x_i - mean|^2).
    discrepancy: max_ij |x_i - x_j|.
    """
    output, statistics = output_model(problem, rule, xs, buffers, centre)
    train = problem.evaluate(output, statistics, test=False, limit=rule.train_samples)
    test = problem.evaluate(output, statistics, test=True)
    accuracies: list[float] = []
    if test.accuracy is not None:
        places, first = distinct(xs, buffers)
        found = (accuracies_of or partial(_accuracies, problem))([xs[i] for i in first], [buffers[i] for i in first])
        accuracies = [found[place] for place in places]
    return fields(train, test, accuracies, xs)


def output_model(
    problem: Problem, rule: Evaluation, xs: Sequence[Tensor], buffers: Sequence[Tensor], centre: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the output model [d] and its batch-norm statistics [nb]; arguments as in `measure`."""
    output = mean(xs) if centre is None else centre
    if rule.batch_norm == "recalibrate" and problem.start_buffers.numel():
        return output, problem.recalibrated(output, rule.train_samples)
    return output, mean(buffers)


def distinct(xs: Sequence[Tensor], buffers: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """Find equal models of consecutive workers, which are evaluated once; after an all-reduce all are equal.

    Returns for each worker the index of its model among the different ones, and for each of these its first worker."""
    news = [
        rank == 0 or not (torch.equal(x, xs[rank - 1]) and torch.equal(statistics, buffers[rank - 1]))
        for rank, (x, statistics) in enumerate(zip(xs, buffers, strict=True))
    ]
    return [count - 1 for count in accumulate(news)], [rank for rank, new in enumerate(news) if new]


def fields(
    train: Measured, test: Measured, accuracies: Sequence[float], xs: Sequence[Tensor]
) -> dict[str, float | None]:
    """Combine evaluations and the spread of every worker's vector [d] into the `FIELDS` of a mark."""
    consensus_distance, discrepancy = spread(xs)
    values = (
        train.loss,
        test.loss,
        test.accuracy,
        test.top5,
        min(accuracies, default=None),
        sum(accuracies) / len(accuracies) if accuracies else None,
        max(accuracies, default=None),
        consensus_distance,
        discrepancy,
    )
    return dict(zip(FIELDS, values, strict=True))


def mean(vectors: Sequence[Tensor]) -> Tensor:
    """Return the mean of vectors [d], added in order of rank."""
    total = vectors[0].clone()
    for vector in vectors[1:]:
        total.add_(vector)
    return total.div_(len(vectors))


def spread(xs: Sequence[Tensor]) -> tuple[float, float]:
    """Return consensus distance and discrepancy of vectors [d], in double precision; exactly 0 if all are equal."""
    if all(torch.equal(x, xs[0]) for x in xs[1:]):
        return 0.0, 0.0
    rows = torch.stack(list(xs)).double()
    deviations = rows - rows.mean(dim=0)
    consensus = float(deviations.square().sum(dim=1).mean().sqrt())
    # not by matrix products, which lose small differences of large vectors
    pairs = torch.cdist(deviations, deviations, compute_mode="donot_use_mm_for_euclid_dist")
    return consensus, float(pairs.max())


def _accuracies(problem: Problem, xs: Sequence[Tensor], buffers: Sequence[Tensor]) -> list[float]:
    measured = [problem.evaluate(x, statistics, test=True) for x, statistics in zip(xs, buffers, strict=True)]
    return [one.accuracy for one in measured if one.accuracy is not None]
