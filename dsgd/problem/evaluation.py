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

ROUNDING = 1e-6  # of products of two vectors of double precision, relative to the largest square; far more than it is

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
    problem: Problem, rule: Evaluation, xs: Sequence[Tensor], buffers: Sequence[Tensor], centre: Tensor | None
) -> dict[str, float | None]:
    """Measure the `FIELDS` of a mark from every worker's vector [d] and buffers [nb], all but the workers' accuracies.

    centre: [d], the output model of methods that have one; None: the mean of the workers' vectors.
    consensus_distance: sqrt(mean_i |x_i - mean|^2).
    discrepancy: max_ij |x_i - x_j|.
    """
    output, statistics = output_model(problem, rule, xs, buffers, centre)
    train = problem.evaluate(output, statistics, test=False, limit=rule.train_samples)
    return fields(train, problem.evaluate(output, statistics, test=True), xs)


def measure_workers(
    problem: Problem, xs: Sequence[Tensor], buffers: Sequence[Tensor], accuracies_of: AccuraciesOf | None = None
) -> dict[str, float | None]:
    """Measure the least, mean and largest test accuracy of workers, each by its own vector [d] and its own batch-norm
    statistics [nb]. None of no workers, and of data without classes. accuracies_of: faster than one by one."""
    if not problem.data.classes or not xs:
        return accuracy_fields([])
    places, first = distinct(xs, buffers)
    found = (accuracies_of or partial(_accuracies, problem))([xs[i] for i in first], [buffers[i] for i in first])
    return accuracy_fields([found[place] for place in places])


def evaluated_workers(rule: Evaluation, workers: int, everybody: bool) -> list[int]:
    """Return which of so many workers a mark evaluates by `eval.workers`. everybody: at the first and last mark."""
    if everybody or rule.workers == "all":
        return list(range(workers))
    count = 0 if rule.workers == "none" else min(int(rule.workers), workers)
    return [place * workers // count for place in range(count)]


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


def fields(train: Measured, test: Measured, xs: Sequence[Tensor]) -> dict[str, float | None]:
    """Combine evaluations of the output model and the spread of every worker's vector [d] into the `FIELDS` of a mark
    that evaluates no workers."""
    consensus_distance, discrepancy = spread(xs)
    return dict.fromkeys(FIELDS) | {
        "train_loss": train.loss,
        "test_loss": test.loss,
        "test_accuracy": test.accuracy,
        "test_top5": test.top5,
        "consensus_distance": consensus_distance,
        "discrepancy": discrepancy,
    }


def accuracy_fields(accuracies: Sequence[float]) -> dict[str, float | None]:
    """Return the fields of a mark that tell of the evaluated workers' accuracies."""
    return {
        "worker_accuracy_min": min(accuracies, default=None),
        "worker_accuracy_mean": sum(accuracies) / len(accuracies) if accuracies else None,
        "worker_accuracy_max": max(accuracies, default=None),
    }


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
    deviations = torch.stack(list(xs)).double()
    deviations -= deviations.mean(dim=0)
    largest = _largest_distance(deviations)
    return float(deviations.square_().sum(dim=1).mean().sqrt()), largest


def _largest_distance(deviations: Tensor) -> float:
    """Return the largest distance of two rows of a matrix [p, d] whose rows have the mean zero."""
    # a matrix product is ten times as fast, and loses small differences: it leaves few pairs to compare
    products = deviations @ deviations.T
    squares = products.diagonal() + products.diagonal().unsqueeze(1) - 2 * products
    least = squares.max() - ROUNDING * products.diagonal().max()
    candidates = (squares < least).logical_not_().triu_(1)  # all pairs, where these are not numbers
    found = [
        torch.cdist(row.unsqueeze(0), deviations[others], compute_mode="donot_use_mm_for_euclid_dist").max()
        for row, others in zip(deviations, candidates, strict=True)
        if others.any()
    ]
    return float(torch.stack(found).max())


def _accuracies(problem: Problem, xs: Sequence[Tensor], buffers: Sequence[Tensor]) -> list[float]:
    measured = [problem.evaluate(x, statistics, test=True) for x, statistics in zip(xs, buffers, strict=True)]
    return [one.accuracy for one in measured if one.accuracy is not None]
