"""Median and interval over seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dsgd.report.interval import CONFIDENCE, Estimate, coverage, estimate, interval_note
from tests.support.each_row import each_row


def test_the_interval_leaves_out_as_many_values_as_the_sign_test_allows():
    """Textbook ranks of the 95 % interval of a median: 1 to 6 of 6, 2 to 8 of 9, 3 to 10 of 12, 6 to 15 of 20."""
    for count, low, high in ((2, 1, 2), (5, 1, 5), (6, 1, 6), (8, 1, 8), (9, 2, 8), (12, 3, 10), (20, 6, 15)):
        found = estimate([float(value) for value in range(count, 0, -1)])
        assert found == Estimate((count + 1) / 2, low, high, count)


def test_the_confidence_is_told_for_the_seeds_there_are():
    """All draws lie on one side of the median with probability 2^(1 - n): at most 94 % of five seeds, 97 % of six."""
    assert [coverage(count) for count in (2, 3, 4, 5)] == [0.5, 0.75, 0.875, 0.9375]
    assert coverage(6) >= CONFIDENCE
    note = "median [interval] over seeds; confidence of the interval: "
    assert interval_note([3, 1, 6, 3]) == note + "75% from 3 seeds, 97% from 6 seeds"
    assert interval_note([20]) == note + "96% from 20 seeds"
    assert interval_note([1, 1]) == interval_note([]) == ""


@each_row("count", [3, 7, 15])
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
    with pytest.raises(ValueError, match="zip"):
        estimate([2.0, math.inf], censored=[math.inf])
