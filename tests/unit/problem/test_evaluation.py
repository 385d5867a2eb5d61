"""What a mark measures of the workers: whose accuracies, and how far their vectors are from each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dsgd.experiment import Evaluation
from dsgd.problem.evaluation import BLOCK, evaluated_workers, output_model, spread
from dsgd.problem.problem import build_problem
from tests.support.cases import prepared
from tests.support.each_row import each_row


@each_row(
    ("workers", "of", "ranks"),
    [
        ("none", 8, []),
        ("all", 3, [0, 1, 2]),
        (1, 8, [0]),
        (2, 8, [0, 4]),
        (3, 8, [0, 2, 5]),
        (4, 100, [0, 25, 50, 75]),
        (9, 4, [0, 1, 2, 3]),
    ],
)
def test_ranks_are_spread_evenly(workers: int | str, of: int, ranks: list[int]) -> None:
    assert evaluated_workers(Evaluation(workers=workers), of, everybody=False) == ranks
    assert evaluated_workers(Evaluation(workers=workers), of, everybody=True) == list(range(of))


def of_all_pairs(xs: list[torch.Tensor]) -> torch.Tensor:
    """The definition, |x_i - x_j| for all i < j in ascending order, without a matrix product."""
    rows = torch.stack(xs).double()
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return distances[torch.ones_like(distances).triu(1) > 0].sort().values


def median(distances: torch.Tensor) -> float:
    return float(np.median(distances.numpy()))


@each_row(
    ("offset", "workers", "scale"), [(0.0, 2, 1e-12), (0.0, 3, 1.0), (1e6, 4, 1.0), (1e6, 16, 1e-12), (1e6, 33, 1e12)]
)
def test_median_and_discrepancy_are_those_of_all_pairs_to_the_last_bit(
    offset: float, workers: int, scale: float
) -> None:
    """Also of vectors whose distances are small against their length, where a product of matrices finds nothing."""
    noise = torch.Generator().manual_seed(workers)
    xs = [scale * (offset + torch.randn(1001, generator=noise, dtype=torch.float64)) for _ in range(workers)]
    expected = of_all_pairs(xs)
    assert spread(xs)[1:] == (median(expected), float(expected[-1]))


@each_row(
    ("scale", "workers", "kind"),
    [(1e-30, 2, torch.float32), (1.0, 5, torch.float32), (1.0, 32, torch.float64), (1e30, 5, torch.float32)],
)
def test_vectors_of_several_blocks_are_compared_whole(scale: float, workers: int, kind: torch.dtype) -> None:
    """The last block is shorter. The squares of the smallest and the largest are beyond single precision."""
    noise = torch.Generator().manual_seed(workers)
    start = torch.randn(2 * BLOCK + 17, generator=noise, dtype=kind)
    xs = [scale * (start + 0.01 * torch.randn(len(start), generator=noise, dtype=kind)) for _ in range(workers)]
    expected = of_all_pairs(xs)
    rows = torch.stack(xs).double()
    consensus = (rows - rows.mean(dim=0)).square().sum(dim=1).mean().sqrt()
    assert spread(xs) == (pytest.approx(float(consensus), rel=1e-14), median(expected), float(expected[-1]))


@each_row("precision", ["highest", "high"])
def test_distances_that_single_precision_cannot_tell_apart_are_ranked(precision: str) -> None:
    """Relative differences of 1e-9. With `high` the products may have 10 bits."""
    xs = list(torch.diag(1 + 1e-9 * torch.randperm(9, generator=torch.Generator().manual_seed(0)).double()))
    expected = of_all_pairs(xs)
    assert len(set(expected.float().tolist())) == 1 < len(set(expected.tolist()))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert spread(xs)[1:] == (median(expected), float(expected[-1]))
    finally:
        torch.set_float32_matmul_precision(before)


def test_workers_that_are_equal_are_exactly_at_no_distance() -> None:
    """Four of five: 6 of 10 pairs are equal. Also two pairs of equals, whose median is between the groups."""
    noise = torch.Generator().manual_seed(1)
    x, y = (torch.randn(1000, generator=noise) for _ in range(2))
    assert spread([x, x.clone(), y, x.clone(), x.clone()])[1] == 0.0
    assert spread([x, y, x.clone(), y.clone()])[1] == spread([x, y])[2] > 0
    assert spread([x, x.clone()]) == (0.0, 0.0, 0.0)


def test_the_discrepancy_of_vectors_too_small_to_square_is_still_theirs() -> None:
    xs = [torch.tensor([rank * 1e-200], dtype=torch.float64) for rank in range(3)]
    assert spread(xs)[1:] == (median(of_all_pairs(xs)), float(of_all_pairs(xs)[-1]))


@each_row(("value", "place"), [(math.nan, 0), (math.inf, BLOCK), (-math.inf, BLOCK + 3)])
def test_a_worker_with_an_entry_that_is_not_finite_has_no_distance(place: int, value: float) -> None:
    xs = list(torch.randn(3, BLOCK + 4, generator=torch.Generator().manual_seed(0)))
    xs[2][place] = value
    assert all(map(math.isnan, spread(xs)))


def test_finite_vectors_too_large_to_square_have_an_infinite_distance() -> None:
    assert spread(list(1e200 * torch.eye(3, dtype=torch.float64))) == (math.inf, math.inf, math.inf)


@each_row(
    ("batch_norm", "of_a_mean", "of_a_centre"),
    [
        ("auto", "average", "recalibrate"),
        ("average", "average", "average"),
        ("recalibrate", "recalibrate", "recalibrate"),
    ],
)
def test_a_centre_has_statistics_of_its_own_by_default(batch_norm: str, of_a_mean: str, of_a_centre: str) -> None:
    """Nobody has trained at a centre, so the workers' statistics are not its own."""
    problem = build_problem(prepared("model=resnet8", "model.width=4", "data=digits", "nodes=2", "precision=fp64"))
    xs = [problem.start + 0.1 * i for i in range(2)]
    buffers = [problem.start_buffers.clone() for _ in range(2)]
    buffers[1][: problem.state.numbers] += 1  # counters have no mean, and are equal
    rule = Evaluation(batch_norm=batch_norm, train_samples=32)
    for centre, expected in ((None, of_a_mean), (problem.start, of_a_centre)):
        output, statistics = output_model(problem, rule, xs, buffers, centre)
        known = {"average": sum(buffers) / 2, "recalibrate": problem.recalibrated(output, 32)}
        assert torch.equal(statistics, known[expected])
        assert not torch.equal(known["average"], known["recalibrate"])
