"""Verdicts at the edges of their thresholds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.report.interval import Estimate
from dsgd.reproduction.verdict import (
    Check,
    Verdict,
    at_least,
    at_most,
    close,
    exactly,
    holds,
    judged,
    no_worse,
    within,
)

PASS, FAIL, EXPLAINED, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.EXPLAINED, Verdict.INCONCLUSIVE


def seeds(median: float, low: float, high: float) -> Estimate:
    return Estimate(median, low, high, 5)


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (seeds(1.10, 1.001, 1.3), PASS),
        (seeds(1.10, 1.000, 1.3), OPEN),  # the interval holds the neutral value
        (seeds(1.09, 1.050, 1.3), OPEN),  # more seeds may bring the median there
        (seeds(1.09, 1.050, 1.0999), FAIL),
        (seeds(math.inf, 1.2, math.inf), PASS),  # the other one never got there
        (seeds(math.nan, 0.0, math.inf), OPEN),  # on most seeds neither did
        (exactly(1.1), PASS),
        (exactly(1.0999), FAIL),
    ],
)
def test_at_least_needs_the_median_there_and_the_interval_beyond_the_neutral_value(
    value: Estimate, verdict: Verdict
) -> None:
    assert at_least("ratio", value, 1.1, neutral=1.0).verdict is verdict


@given(st.floats(0.1, 10), st.floats(0, 3), st.floats(0, 3), st.floats(0.1, 10))
def test_at_most_mirrors_at_least(median: float, below: float, above: float, threshold: float) -> None:
    mirrored = seeds(-median, -median - above, -median + below)
    one = at_most("x", seeds(median, median - below, median + above), threshold, neutral=1.0)
    other = at_least("x", mirrored, -threshold, neutral=-1.0)
    assert one.verdict is other.verdict


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (seeds(1.0, 0.9, 1.1), PASS),
        (seeds(1.0, 0.89, 1.1), OPEN),
        (seeds(1.2, 1.11, 1.3), FAIL),
        (exactly(math.nan), FAIL),
    ],
)
def test_within_takes_the_whole_interval(value: Estimate, verdict: Verdict) -> None:
    assert within("x", value, 0.9, 1.1).verdict is verdict


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        (seeds(-0.001, -0.005, 0.002), PASS),
        (seeds(-0.001, -0.0051, 0.002), OPEN),
        (seeds(-0.01, -0.02, -0.0051), FAIL),
    ],
)
def test_no_loss_needs_the_whole_interval_within_the_margin(gain: Estimate, verdict: Verdict) -> None:
    assert no_worse("accuracy", gain, 0.005).verdict is verdict


def test_close_knows_shares_and_differences_and_no_number_is_not_close() -> None:
    assert close("x", 1.009, 1.0, relative=0.01).verdict is PASS
    assert close("x", 1.011, 1.0, relative=0.01).verdict is FAIL
    assert close("x", 0.019, 0.0, absolute=0.02).verdict is PASS
    assert close("x", math.nan, 0.0, absolute=0.02).verdict is FAIL


def check(verdict: Verdict) -> Check:
    return Check("x", exactly(1.0), "", verdict)


@pytest.mark.parametrize(
    ("verdicts", "need", "verdict"),
    [
        ([PASS, PASS], None, PASS),
        ([PASS, OPEN], None, OPEN),
        ([OPEN, FAIL], None, FAIL),
        ([PASS, PASS, FAIL], 2, PASS),
        ([PASS, OPEN, FAIL], 2, OPEN),
        ([PASS, FAIL, FAIL], 2, FAIL),
    ],
)
def test_a_claim_passes_where_enough_of_its_checks_do(
    verdicts: list[Verdict], need: int | None, verdict: Verdict
) -> None:
    assert judged([check(one) for one in verdicts], need=need).verdict is verdict


def test_a_failure_is_explained_by_a_second_measurement_that_passes_and_only_by_that() -> None:
    assert judged([check(FAIL)], explained_by=[check(PASS)]).verdict is EXPLAINED
    assert judged([check(FAIL)], explained_by=[check(PASS), check(FAIL)]).verdict is FAIL
    assert judged([check(OPEN)], explained_by=[check(PASS)]).verdict is OPEN
    assert judged([check(PASS)], explained_by=[check(PASS)]).explanation == ()


def test_a_claim_without_checks_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one check"):
        judged([])


def test_anything_else_is_put_in_words() -> None:
    found = holds("slope", 0.4, "between the others", good=False)
    assert (found.verdict, found.threshold) == (FAIL, "between the others")
