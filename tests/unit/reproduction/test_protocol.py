"""Intervals cover what the protocol says they cover."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dsgd.report.interval import Estimate, coverage
from studies.reproduction.criterion import Criterion
from studies.reproduction.protocol import (
    confidence_of_each,
    fold_error,
    gain_error,
    null_difference,
    null_factor,
    ratio_error,
    sampling_error,
    student_quantile,
    widened,
    widened_ratio,
)
from studies.reproduction.verdict import Verdict
from tests.support.each_row import each_row

NO_LOSS = Criterion.parse("at_most 1.02")
NULL = Estimate(1.042, 1.03, 1.05, 10)  # sync and localsgd with tau = 1, each tuned


def fewest_seeds(confidence: float) -> int:
    """Return how many seeds an interval of this confidence needs, when it goes from the smallest to the largest."""
    seeds = 1
    while coverage(seeds) < confidence:
        seeds += 1
    return seeds


def test_ten_seeds_are_enough_for_twelve_checks_on_a_test_set() -> None:
    assert fewest_seeds(confidence_of_each(12, sources=2)) == 10
    assert fewest_seeds(confidence_of_each(1)) == 6


def test_the_error_of_a_test_set_is_that_of_its_draws() -> None:
    """Two models of accuracies 0.8 and 0.78 that fail on different images, on 1,000 of them."""
    generator = np.random.default_rng(0)
    size, error = 1000, gain_error(0.8, 0.78, 1000, 0.95)
    gains = generator.binomial(size, 0.8, 4000) / size - generator.binomial(size, 0.78, 4000) / size
    assert np.mean(np.abs(gains - 0.02) <= error) == pytest.approx(0.95, abs=0.01)
    assert error == pytest.approx(0.0357, abs=1e-4)  # larger than the half point that claims speak of
    assert sampling_error(1.0, 40_000, 0.95) == pytest.approx(sampling_error(1.0, 10_000, 0.95) / 2)


def test_the_error_of_a_ratio_of_losses_grows_with_both() -> None:
    both = ratio_error((0.4, 0.4), (0.8, 0.8), 10_000, 0.95)
    assert both == pytest.approx(math.exp(1.96 * math.hypot(2, 2) / 100), rel=1e-3)


def test_the_error_of_parts_is_student_s_interval_of_their_means_over_seeds() -> None:
    """Seeds' own deviations cancel. The mean of 100 parts, alternately 1 and -1, has an error of t / sqrt(99)."""
    common, own = np.tile([1.0, -1.0], 50), np.repeat([3.0, -3.0], 50)
    error = fold_error(np.array([common + own, common - own]), 0.95)
    assert error == pytest.approx(1.984217 / math.sqrt(99), rel=1e-5)


@each_row(("probability", "degrees", "quantile"), [(0.975, 19, 2.093024), (0.995, 99, 2.626405)])
def test_quantiles_of_student_s_t_are_those_of_the_tables(probability: float, degrees: int, quantile: float) -> None:
    assert student_quantile(probability, degrees) == pytest.approx(quantile, rel=1e-3)


@each_row(
    ("measured", "verdict"),
    [
        (Estimate(1.0, 0.995, 1.005, 10), Verdict.INCONCLUSIVE),  # 2 % are less than what tuning alone does
        (Estimate(1.03, 1.025, 1.035, 10), Verdict.INCONCLUSIVE),
        (Estimate(1.2, 1.15, 1.25, 10), Verdict.FAIL),
        (Estimate(0.9, 0.88, 0.92, 10), Verdict.PASS),
    ],
)
def test_a_difference_that_the_null_test_has_too_decides_nothing(measured: Estimate, verdict: Verdict) -> None:
    assert NO_LOSS.check("x", widened_ratio(measured, null_factor(NULL))).verdict is verdict
    bare = NO_LOSS.check("x", measured).verdict
    assert bare is not Verdict.INCONCLUSIVE


def test_the_spread_of_a_null_test_counts_in_both_directions() -> None:
    assert null_factor(NULL) == null_factor(Estimate(1 / 1.042, 1 / 1.05, 1 / 1.03, 10)) == 1.05
    assert null_factor(Estimate(1.0, 0.0, 1.1, 10)) == math.inf
    assert null_difference(Estimate(-0.002, -0.004, 0.001, 10)) == 0.004
    assert widened(Estimate(0.0, -0.001, 0.001, 10), 0.004).low == pytest.approx(-0.005)


def test_checks_that_there_are_not_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="checks and sources must be >= 1, got 0 and 1"):
        confidence_of_each(0)
    with pytest.raises(ValueError, match="test_size must be >= 1, got 0"):
        sampling_error(1.0, 0, 0.95)
