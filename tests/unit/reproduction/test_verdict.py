"""Verdicts at the edges of their thresholds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.report.interval import Estimate
from studies.reproduction.verdict import (
    Check,
    Finding,
    Verdict,
    above,
    at_least,
    at_most,
    below,
    close,
    exactly,
    judged,
    nearness_above,
    over_region,
    over_tasks,
    within,
)
from tests.support.each_row import each_row

PASS, FAIL, EXPLAINED, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.EXPLAINED, Verdict.INCONCLUSIVE
REGION = Verdict.REGION


def seeds(median: float, low: float, high: float) -> Estimate:
    return Estimate(median, low, high, 5)


@each_row(
    ("value", "verdict"),
    [
        (seeds(1.2, 1.10, 1.3), PASS),
        (seeds(1.2, 1.099, 1.3), OPEN),  # the median is there, the interval is not
        (seeds(1.09, 1.050, 1.3), OPEN),
        (seeds(1.09, 1.050, 1.0999), FAIL),
        (seeds(math.inf, 1.2, math.inf), PASS),  # the other one never got there
        (seeds(math.nan, 0.0, math.inf), OPEN),  # on most seeds neither did
        (exactly(1.1), PASS),
        (exactly(1.0999), FAIL),
        (exactly(math.nan), FAIL),
    ],
)
def test_at_least_needs_the_whole_interval(value: Estimate, verdict: Verdict) -> None:
    assert at_least("ratio", value, 1.1).verdict is verdict


def test_strict_bounds_are_strict() -> None:
    assert above("x", seeds(0.2, 0.0, 0.3), 0.0).verdict is OPEN
    assert above("x", seeds(0.2, 0.1, 0.3), 0.0).verdict is PASS
    assert above("x", exactly(1.0), 1.0).verdict is FAIL


@given(st.floats(0.1, 10), st.floats(0, 3), st.floats(0, 3), st.floats(0.1, 10))
def test_upper_bounds_mirror_lower_ones(median: float, down: float, up: float, threshold: float) -> None:
    value, mirrored = seeds(median, median - down, median + up), seeds(-median, -median - up, -median + down)
    for upper, lower in ((at_most, at_least), (below, above)):
        assert upper("x", value, threshold).verdict is lower("x", mirrored, -threshold).verdict


@each_row(
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


def test_close_knows_shares_and_differences_and_no_number_is_not_close() -> None:
    assert close("x", 1.009, 1.0, relative=0.01).verdict is PASS
    assert close("x", 1.011, 1.0, relative=0.01).verdict is FAIL
    assert close("x", 0.019, 0.0, absolute=0.02).verdict is PASS
    assert close("x", math.nan, 0.0, absolute=0.02).verdict is FAIL


def check(verdict: Verdict) -> Check:
    return Check("x", exactly(1.0), "", verdict)


@each_row(
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
    assert judged([check(FAIL)] * 2, need=1, explained_by=[check(PASS), check(FAIL)]).verdict is EXPLAINED
    assert judged([check(OPEN)], explained_by=[check(PASS)]).verdict is OPEN
    assert judged([check(PASS)], explained_by=[check(PASS)]).explanation == ()


def test_a_claim_without_checks_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one check"):
        judged([])


@each_row(
    ("shapes", "fashion", "verdict"),
    [
        (PASS, PASS, PASS),
        (FAIL, FAIL, FAIL),
        (EXPLAINED, FAIL, FAIL),
        (OPEN, OPEN, OPEN),
        (PASS, FAIL, Verdict.DEPENDS),
        (FAIL, REGION, Verdict.DEPENDS),
        (OPEN, FAIL, OPEN),
        (PASS, OPEN, OPEN),
        (PASS, Verdict.NOT_RUN, Verdict.NOT_RUN),
        (FAIL, Verdict.NOT_RUN, Verdict.NOT_RUN),  # on generated images alone nothing fails
        (Verdict.NOT_RUN, FAIL, FAIL),
        (Verdict.NOT_TESTABLE, Verdict.NOT_RUN, Verdict.NOT_TESTABLE),  # more runs would not change it
    ],
)
def test_a_claim_passes_on_all_tasks_and_fails_on_all_that_were_run_a_real_one_among_them(
    shapes: Verdict, fashion: Verdict, verdict: Verdict
) -> None:
    findings = {"shapes": Finding(shapes, (check(shapes),), "Why."), "fashion": Finding(fashion, (check(fashion),))}
    both = over_tasks(findings)
    assert both.verdict is verdict
    assert [each.what for each in both.checks] == ["shapes: x", "fashion: x"]
    words = {PASS: "reproduced", FAIL: "not reproduced", EXPLAINED: "not reproduced", OPEN: "open"}
    words[Verdict.NOT_TESTABLE] = "not testable"
    assert both.reason.startswith(f"On shapes {words.get(shapes, shapes)}. Why.\n\nOn fashion ")


def test_a_claim_that_fails_on_generated_images_alone_is_open() -> None:
    assert over_tasks({"shapes": Finding(FAIL), "digits": Finding(FAIL)}).verdict is OPEN


@each_row(
    ("first", "second", "verdict"),
    [
        ((PASS, PASS), (PASS, FAIL), REGION),
        ((PASS, FAIL), (FAIL, PASS), Verdict.DEPENDS),  # two regions that have nothing in common
        ((PASS, FAIL), (OPEN, PASS), OPEN),
        ((PASS, PASS), (PASS, PASS), PASS),
    ],
)
def test_a_region_is_what_all_tasks_have_in_common(
    first: tuple[Verdict, ...], second: tuple[Verdict, ...], verdict: Verdict
) -> None:
    maps = [{f"cell {i}": Finding(each) for i, each in enumerate(verdicts)} for verdicts in (first, second)]
    joint = over_tasks({"shapes": over_region(maps[0]), "fashion": over_region(maps[1])})
    assert joint.verdict is verdict
    assert joint.reason.splitlines()[-1].startswith("Together ")


@each_row(
    ("verdicts", "verdict"),
    [([PASS, PASS], PASS), ([PASS, FAIL], REGION), ([PASS, OPEN], REGION), ([OPEN, FAIL], OPEN), ([FAIL, FAIL], FAIL)],
)
def test_a_claim_holds_in_the_region_of_the_conditions_under_which_it_passes(
    verdicts: list[Verdict], verdict: Verdict
) -> None:
    found = over_region({f"cell {i}": Finding(one, (check(one),)) for i, one in enumerate(verdicts)})
    assert found.verdict is verdict
    assert all(f"cell {i}" in found.reason for i in range(len(verdicts)))


def test_of_alternatives_one_that_fails_never_hides_one_that_is_open() -> None:
    open_one, failing = (Estimate(1.0, low, high, 10) for low, high in ((0.5, 2.0), (0.9, 0.95)))
    above = [at_least("", value, 1.1) for value in (failing, open_one)]
    assert max(above, key=nearness_above) is above[1]
