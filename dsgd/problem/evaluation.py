"""Measurements of an evaluation mark: the output model, the workers' own models, and their distances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, groupby
from operator import itemgetter

import torch
from torch import Tensor

from dsgd.data.protocols import sample_losses, test_samples
from dsgd.experiment import Evaluation
from dsgd.problem.problem import Problem
from dsgd.problem.state import mean

# the accuracy of each of several models on the test set, from their vectors [d] and buffers [nb]
AccuraciesOf = Callable[[Sequence[Tensor], Sequence[Tensor]], list[float]]

BLOCK = 2048  # entries of each vector compared at a time: some tens of such blocks stay in the cache

FIELDS = (
    "train_loss",
    "test_loss",
    "test_loss_deviation",
    "test_accuracy",
    "test_top5",
    "worker_accuracy_min",
    "worker_accuracy_mean",
    "worker_accuracy_max",
    "consensus_distance",
    "pairwise_distance_median",
    "discrepancy",
)

FOLDS = 100  # parts of the test set, of samples that follow each other in evaluation
FOLD_FIELDS = ("test_fold_losses", "test_fold_accuracies")  # of a summary


def measure(
    problem: Problem, rule: Evaluation, xs: Sequence[Tensor], buffers: Sequence[Tensor], centre: Tensor | None
) -> dict[str, float | None]:
    """Measure the `FIELDS` of a mark from every worker's vector [d] and buffers [nb], all but the workers' accuracies.

    centre: [d], the output model of methods that have one; None: the mean of the workers' vectors.
    consensus_distance: sqrt(mean_i |x_i - mean|^2).
    pairwise_distance_median, discrepancy: median and maximum over i < j of |x_i - x_j|; 0 for one worker."""
    output, statistics = output_model(problem, rule, xs, buffers, centre)
    train = problem.evaluate(output, statistics, test=False, limit=rule.train_samples)
    test = problem.evaluate(output, statistics, test=True)
    consensus_distance, median, discrepancy = spread(xs)
    return dict.fromkeys(FIELDS) | {
        "train_loss": train.loss,
        "test_loss": test.loss,
        "test_loss_deviation": test.deviation,
        "test_accuracy": test.accuracy,
        "test_top5": test.top5,
        "consensus_distance": consensus_distance,
        "pairwise_distance_median": median,
        "discrepancy": discrepancy,
    }


def measure_workers(
    problem: Problem, xs: Sequence[Tensor], buffers: Sequence[Tensor], accuracies_of: AccuraciesOf | None = None
) -> dict[str, float | None]:
    """Measure the least, mean and largest test accuracy of workers, each by its own vector [d] and its own batch-norm
    statistics [nb]. None without workers, and for data without classes. accuracies_of: evaluates several at once."""
    accuracies: list[float] = []
    if problem.data.classes and xs:
        places, first = unique_models(xs, buffers)
        measure_all = accuracies_of or partial(_accuracies, problem)
        different = measure_all([xs[i] for i in first], [buffers[i] for i in first])
        accuracies = [different[index] for index in places]
    return {
        "worker_accuracy_min": min(accuracies, default=None),
        "worker_accuracy_mean": sum(accuracies) / len(accuracies) if accuracies else None,
        "worker_accuracy_max": max(accuracies, default=None),
    }


def evaluated_workers(rule: Evaluation, workers: int, everybody: bool) -> list[int]:
    """Return the workers that a mark evaluates by `eval.workers`. everybody: True at the first and last mark."""
    if everybody or rule.workers == "all":
        return list(range(workers))
    count = 0 if rule.workers == "none" else min(int(rule.workers), workers)
    return [index * workers // count for index in range(count)]


def output_model(
    problem: Problem, rule: Evaluation, xs: Sequence[Tensor], buffers: Sequence[Tensor], centre: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the output model [d] and its batch-norm statistics [nb]; arguments as in `measure`."""
    output = mean(xs) if centre is None else centre
    # the workers' statistics are of the workers' models, and a centre is another one than their mean
    recalibrates = centre is not None if rule.batch_norm == "auto" else rule.batch_norm == "recalibrate"
    if recalibrates and problem.start_buffers.numel():
        return output, problem.recalibrated(output, rule.train_samples)
    return output, problem.state.mean(buffers)


def unique_models(xs: Sequence[Tensor], buffers: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """Find equal models of consecutive workers, which are evaluated once; after an all-reduce all are equal.

    Returns for each worker the index of its model among the different ones, and for each of these its first worker."""
    news = [
        rank == 0 or not (torch.equal(x, xs[rank - 1]) and torch.equal(statistics, buffers[rank - 1]))
        for rank, (x, statistics) in enumerate(zip(xs, buffers, strict=True))
    ]
    return [count - 1 for count in accumulate(news)], [rank for rank, new in enumerate(news) if new]


def spread(xs: Sequence[Tensor]) -> tuple[float, float, float]:
    """Return consensus distance, median pairwise distance and discrepancy of vectors [d], in double precision: exactly
    0 if all are equal, NaN if an entry is NaN or infinite.

    Needs the memory of the vectors in double precision only if all pairs are equally far apart, otherwise little."""
    if all(torch.equal(x, xs[0]) for x in xs[1:]):
        return 0.0, 0.0, 0.0
    squares, products = _deviations(xs)
    # an entry that is not finite has no finite square; large finite entries may also have none
    if not squares.isfinite().all() and not all(x.isfinite().all() for x in xs):
        return math.nan, math.nan, math.nan
    pairs = len(xs) * (len(xs) - 1) // 2
    lower, upper, largest = _ranked_distances(xs, squares, products, [(pairs - 1) // 2, pairs // 2, pairs - 1])
    return float(squares.mean().sqrt()), (lower + upper) / 2, largest


def _product_type() -> torch.dtype:
    """Return the type of products: double precision if products of single precision may use TF32."""
    return torch.float32 if torch.get_float32_matmul_precision() == "highest" else torch.float64


def _deviations(xs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the squared norms [p] of the deviations of p vectors [d] from their mean, and approximate products [p, p]
    of all pairs of deviations."""
    squares = xs[0].new_zeros(len(xs), dtype=torch.float64)
    products = xs[0].new_zeros((len(xs), len(xs)), dtype=torch.float64)
    for parts in zip(*(x.split(BLOCK) for x in xs), strict=True):
        deviations = torch.stack(parts).double()
        deviations -= deviations.mean(dim=0)
        rounded = deviations.to(_product_type())
        products += rounded @ rounded.T
        squares += deviations.square_().sum(dim=1)
    return squares, products


def _ranked_distances(xs: Sequence[Tensor], squares: Tensor, products: Tensor, ranks: Sequence[int]) -> list[float]:
    """Return the distances with these ranks among all pairs of vectors [d]; rank 0 is the smallest.

    squares, products: results of `_deviations`. Each returned distance is the norm of a difference in double precision:
    exact to the last bits, and 0 for equal vectors, even if other vectors are far away. The products bound the distance
    of each pair, which leaves few pairs to compare."""
    row, other = torch.triu_indices(len(xs), len(xs), offset=1, device=squares.device)
    both = squares[row] + squares[other]
    between = both - 2 * products[row, other]  # the squared distance of each pair
    numbers = torch.finfo(_product_type())
    # a sum of n products is off by n roundings at most, in any order; products below `tiny` may be lost
    error = (BLOCK + 8) * numbers.eps / 2 * both + 2 * len(xs[0]) * numbers.tiny
    least, most = between - error, between + error
    # the squared distance with a rank is between the numbers of this rank among `least` and among `most`
    bounds = [(least.sort().values[rank], most.sort().values[rank]) for rank in ranks]
    below = [most < low for low, _ in bounds]
    # comparisons with NaN are false: if squares overflow, all pairs remain
    left = [(under | (least > high)).logical_not_() for under, (_, high) in zip(below, bounds, strict=True)]
    chosen = torch.stack(left).any(dim=0)
    exact = torch.zeros_like(between)
    exact[chosen] = _pair_distances(xs, zip(row[chosen].tolist(), other[chosen].tolist(), strict=True))
    return [
        float(exact[some].sort().values[rank - int(under.sum())])
        for rank, under, some in zip(ranks, below, left, strict=True)
    ]


def _pair_distances(xs: Sequence[Tensor], pairs: Iterable[tuple[int, int]]) -> Tensor:
    """Return the distances [n] of n pairs of vectors [d], in ascending order of the first."""
    groups = groupby(pairs, key=itemgetter(0))
    return torch.cat([_distances(xs[i], [xs[j] for _, j in group]) for i, group in groups])


def _distances(x: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Return the distances [n] of n vectors [d] from x [d], by differences."""
    rows = torch.stack(list(others)).double()
    return torch.cdist(x.double().unsqueeze(0), rows, compute_mode="donot_use_mm_for_euclid_dist").flatten()


def _accuracies(problem: Problem, xs: Sequence[Tensor], buffers: Sequence[Tensor]) -> list[float]:
    measured = [problem.evaluate(x, statistics, test=True) for x, statistics in zip(xs, buffers, strict=True)]
    return [evaluation.accuracy for evaluation in measured if evaluation.accuracy is not None]


def check_folds(problem: Problem) -> None:
    """Raise ValueError, in one line, for a test set that cannot be cut into FOLDS equal parts."""
    samples = test_samples(problem.data)
    if samples % FOLDS:
        raise ValueError(
            f"eval.test_folds must be false unless {FOLDS} divides the test samples, got {samples} of them"
        )


def evaluate_folds(problem: Problem, x: Tensor, buffers: Tensor) -> dict[str, list[float] | None]:
    """Evaluate a model [d] with its buffers [nb] on each part, to estimate the error of a comparison by the choice of
    test samples: the variation of two models' difference over the parts. Returns the `FOLD_FIELDS`: mean losses and
    accuracies.

    Accuracies are None without classes; both are None if a loss is NaN."""
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
    """Return the mean of each part of all samples. batches: values of samples, each [b]."""
    return torch.cat(list(batches)).double().view(FOLDS, -1).mean(dim=1).tolist()
