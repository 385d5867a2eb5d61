"""Median and interval over seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dsgd.report.interval import CONFIDENCE, NOTE, SEEDS_FOR_CONFIDENCE, Estimate, coverage, estimate


def test_the_interval_leaves_out_as_many_values_as_the_sign_test_allows():
    """Textbook values of the 95 % interval of a median: n=6: 1st to 6th, 9: 2nd to 8th, 12: 3rd to 10th, 20: 6th to 15th."""
    for count, low, high in ((2, 1, 2), (5, 1, 5), (6, 1, 6), (8, 1, 8), (9, 2, 8), (12, 3, 10), (20, 6, 15)):
        found = estimate([float(value) for value in range(count, 0, -1)])
        assert found == Estimate((count + 1) / 2, low, high, count)


def test_its_coverage_is_what_the_note_says():
    """All draws on one side of the median has probability 2^(1 - n)."""
    for count, percent in ((5, 94), (4, 88), (3, 75), (2, 50)):
        assert coverage(count) == 1 - 2.0 ** (1 - count)
        assert f"{count}: {100 * coverage(count):.0f} %" in NOTE.replace(" seeds", "")
        assert round(100 * coverage(count)) == percent
    assert coverage(SEEDS_FOR_CONFIDENCE) >= CONFIDENCE > coverage(SEEDS_FOR_CONFIDENCE - 1)


@pytest.mark.parametrize("count", [3, 7, 15])
def test_the_interval_holds_the_median_as_often_as_it_says(count: int):
    """10,000 samples of a skewed distribution (exponential, median log 2); standard error below 0.005."""
    draws = np.random.default_rng(0).exponential(size=(10_000, count))
    found = [estimate(list(row)) for row in draws]
    share = np.mean([one.low <= math.log(2) <= one.high for one in found])
    wanted = max(coverage(count, k) for k in range(count // 2) if k == 0 or coverage(count, k) >= CONFIDENCE)
    assert share >= min(wanted, CONFIDENCE) - 0.02


def test_one_value_has_no_interval_and_none_no_median():
    assert estimate([3.0, math.nan]) == Estimate(3.0, 3.0, 3.0, 1)
    assert estimate([math.nan]).count == 0
    assert math.isnan(estimate([]).median)


def test_a_run_that_never_got_there_counts_as_later_than_all():
    """Leaving it out would make a method better by failing."""
    assert estimate([2.0, math.inf, 1.0]) == Estimate(2.0, 1.0, math.inf, 3)
    assert estimate([2.0, math.inf, math.inf]).median == math.inf
