"""What a mark measures of the workers: whose accuracies, and how far their vectors are from each other."""

from __future__ import annotations

import math

import pytest
import torch

from dsgd.experiment import Evaluation
from dsgd.problem.evaluation import evaluated_workers, spread


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("workers", [0, -1, "some"])
def test_any_other_choice_of_workers_is_refused(workers: int | str) -> None:
    with pytest.raises(ValueError, match=r"^workers must be all, none or a number >= 1, got "):
        Evaluation(workers=workers)


def of_all_pairs(xs: list[torch.Tensor]) -> float:
    """The definition, max_ij |x_i - x_j|, without a matrix product."""
    rows = torch.stack(xs).double()
    rows -= rows.mean(dim=0)
    return float(torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").max())


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("workers", [2, 3, 16, 33])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_the_discrepancy_is_that_of_all_pairs_to_the_last_bit(offset: float, workers: int, scale: float) -> None:
    """Also of vectors whose distances are small against their length, where a product of matrices finds nothing."""
    noise = torch.Generator().manual_seed(workers)
    xs = [scale * (offset + torch.randn(1001, generator=noise, dtype=torch.float64)) for _ in range(workers)]
    assert spread(xs)[1] == of_all_pairs(xs)


def test_the_discrepancy_of_pairs_equally_far_apart_is_their_distance() -> None:
    """Two groups of equal workers: every pair across them is a candidate."""
    xs = [torch.full((8,), float(rank % 2)) for rank in range(10)]
    assert spread(xs) == pytest.approx((math.sqrt(8) / 2, math.sqrt(8)), rel=1e-15)
    assert spread(list(torch.eye(5))) == (pytest.approx(math.sqrt(0.8)), of_all_pairs(list(torch.eye(5))))


def test_the_discrepancy_of_vectors_too_small_to_square_is_still_theirs() -> None:
    xs = [torch.tensor([rank * 1e-200], dtype=torch.float64) for rank in range(3)]
    assert spread(xs)[1] == of_all_pairs(xs)


def test_a_worker_that_is_not_finite_has_no_distance() -> None:
    xs = [torch.zeros(4), torch.ones(4), torch.full((4,), math.nan)]
    assert math.isnan(spread(xs)[0])
    assert math.isnan(spread(xs)[1])
    xs[2] = torch.full((4,), math.inf)
    assert math.isnan(spread(xs)[1])
