"""Measurements of an evaluation mark: the output model, the workers' own models, and their distances."""

from __future__ import annotations

import math
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
    "pairwise_distance_median",
    "discrepancy",
)


def measure(
    problem: Problem, rule: Evaluation, xs: Sequence[Tensor], buffers: Sequence[Tensor], centre: Tensor | None
) -> dict[str, float | None]:
    """Measure the `FIELDS` of a mark from every worker's vector [d] and buffers [nb], all but the workers' accuracies.

    centre: [d], the output model of methods that have one; None: the mean of the workers' vectors.
    consensus_distance: sqrt(mean_i |x_i - mean|^2).
    pairwise_distance_median, discrepancy: median and maximum over i < j of |x_i - x_j|; 0 of one worker.
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
    # the workers' statistics are of the workers' models, and a centre is another one than their mean
    recalibrates = centre is not None if rule.batch_norm == "auto" else rule.batch_norm == "recalibrate"
    if recalibrates and problem.start_buffers.numel():
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
    consensus_distance, median, discrepancy = spread(xs)
    return dict.fromkeys(FIELDS) | {
        "train_loss": train.loss,
        "test_loss": test.loss,
        "test_accuracy": test.accuracy,
        "test_top5": test.top5,
        "consensus_distance": consensus_distance,
        "pairwise_distance_median": median,
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


def spread(xs: Sequence[Tensor]) -> tuple[float, float, float]:
    """Return consensus distance, median pairwise distance and discrepancy of vectors [d], in double precision: exactly
    0 if all are equal, NaN if an entry is no number or infinite.

    Takes the memory of the vectors in double precision, twice that where all pairs are equally far apart."""
    if all(torch.equal(x, xs[0]) for x in xs[1:]):
        return 0.0, 0.0, 0.0
    deviations = torch.stack(list(xs)).double()
    deviations -= deviations.mean(dim=0)
    if not deviations.isfinite().all():
        return math.nan, math.nan, math.nan
    pairs = len(xs) * (len(xs) - 1) // 2
    lower, upper, largest = _ranked_distances(xs, deviations, [(pairs - 1) // 2, pairs // 2, pairs - 1])
    return float(deviations.square_().sum(dim=1).mean().sqrt()), (lower + upper) / 2, largest


def _ranked_distances(xs: Sequence[Tensor], deviations: Tensor, ranks: Sequence[int]) -> list[float]:
    """Return those of the distances of all pairs of vectors [d] that have these ranks, 0 for the smallest.

    deviations: [p, d], of the vectors from their mean. Each distance that is returned is the norm of a difference in
    double precision: exact to the last bits, and 0 of equal vectors, however far the others are."""
    # a matrix product is ten times as fast, and loses small differences: it leaves few pairs to compare
    products = deviations @ deviations.T
    squares = products.diagonal() + products.diagonal().unsqueeze(1) - 2 * products
    above = torch.ones_like(squares, dtype=torch.bool).triu_(1)
    ordered = squares[above].sort().values
    slack = 2 * ROUNDING * products.diagonal().max()  # within half of it lies the square of the distance with a rank
    found: dict[int, float] = {}
    for rank in ranks:
        if rank in found:
            continue
        sure = int((ordered < ordered[rank] - slack).sum())
        # all pairs, where squares are too large to be numbers
        candidates = ((squares - ordered[rank]).abs() > slack).logical_not_().logical_and_(above)
        exact = [
            _distances(x, [xs[j] for j in others.nonzero().flatten().tolist()])
            for x, others in zip(xs, candidates, strict=True)
            if others.any()
        ]
        found[rank] = float(torch.cat(exact).sort().values[rank - sure])
    return [found[rank] for rank in ranks]


def _distances(x: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Return the distances [n] of n vectors [d] from x [d], by differences."""
    rows = torch.stack(list(others)).double()
    return torch.cdist(x.double().unsqueeze(0), rows, compute_mode="donot_use_mm_for_euclid_dist").flatten()


def _accuracies(problem: Problem, xs: Sequence[Tensor], buffers: Sequence[Tensor]) -> list[float]:
    measured = [problem.evaluate(x, statistics, test=True) for x, statistics in zip(xs, buffers, strict=True)]
    return [one.accuracy for one in measured if one.accuracy is not None]
