"""Judge measurements by thresholds that were fixed before.

A check compares one number, an estimate over seeds where there are several, with its threshold. It passes where the
median meets the threshold and, where the claim has a neutral value (1 of a ratio), the interval excludes it. Where the
threshold is a range, or says "whole interval" as that of no loss does, all of the interval must lie within it. A check
fails where the whole interval misses the threshold; anything between is inconclusive, a request for more seeds.

A claim that fails is explained where a second measurement shows the cause.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from dsgd.report.interval import Estimate


class Verdict(StrEnum):
    """What came out for a claim."""

    PASS = "PASS"
    FAIL = "FAIL"
    EXPLAINED = "FAIL, explained"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_TESTABLE = "NOT TESTABLE HERE"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Check:
    """One measurement beside its threshold.

    what: is measured, with its unit. value: with its interval over seeds, where low and high differ. threshold: as a
    reader knows it, `>= 1.1`."""

    what: str
    value: Estimate
    threshold: str
    verdict: Verdict


@dataclass(frozen=True)
class Finding:
    """What a claim came to.

    checks: all measurements that it was judged by. reason: why it failed, or what limits what was shown; empty where
    the checks say it all. explanation: the second measurement, of a failure that is explained."""

    verdict: Verdict
    checks: tuple[Check, ...] = ()
    reason: str = ""
    explanation: tuple[Check, ...] = ()


def exactly(value: float) -> Estimate:
    """Return a number that no seed changes as an estimate."""
    return Estimate(value, value, value, 1)


def at_least(what: str, value: Estimate | float, threshold: float, neutral: float | None = None) -> Check:
    """Check that a number is at least the threshold. neutral: the value that the interval must lie above."""
    return _compared(what, _estimate(value), threshold, neutral, rising=True)


def at_most(what: str, value: Estimate | float, threshold: float, neutral: float | None = None) -> Check:
    """Check that a number is at most the threshold. neutral: the value that the interval must lie below."""
    return _compared(what, _estimate(value), threshold, neutral, rising=False)


def within(what: str, value: Estimate | float, low: float, high: float) -> Check:
    """Check that a number lies in [low, high], with its whole interval."""
    found = _estimate(value)
    if low <= found.low and found.high <= high:
        verdict = Verdict.PASS
    elif found.high < low or found.low > high:
        verdict = Verdict.FAIL
    else:
        verdict = Verdict.INCONCLUSIVE
    if math.isnan(found.median):
        verdict = Verdict.FAIL
    return Check(what, found, f"{low:.6g} to {high:.6g}", verdict)


def close(what: str, value: float, expected: float, relative: float = 0.0, absolute: float = 0.0) -> Check:
    """Check that a number is what was expected, but for a share of it or an absolute difference."""
    good = abs(value - expected) <= max(relative * abs(expected), absolute)
    tolerance = f"{100 * relative:.3g} %" if relative else f"{absolute:.3g}"
    return Check(what, exactly(value), f"{expected:.6g} within {tolerance}", Verdict.PASS if good else Verdict.FAIL)


def no_worse(what: str, gain: Estimate, margin: float) -> Check:
    """Check that a gain, whose negative values are losses, is no loss of more than the margin: that its whole interval
    lies above."""
    reached = [Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS]
    verdict = reached[(gain.high >= -margin) + (gain.low >= -margin)]
    return Check(what, gain, f"whole interval >= {-margin:.6g}", verdict)


def holds(what: str, value: float, threshold: str, good: bool) -> Check:
    """Check anything else. threshold: in words."""
    return Check(what, exactly(value), threshold, Verdict.PASS if good else Verdict.FAIL)


def judged(
    checks: Sequence[Check], reason: str = "", need: int | None = None, explained_by: Sequence[Check] = ()
) -> Finding:
    """Return the finding of a claim that passes where `need` of its checks do; by default all.

    explained_by: a second measurement: a failure is explained where all of these checks pass."""
    enough = len(checks) if need is None else need
    passed = sum(check.verdict is Verdict.PASS for check in checks)
    open_still = sum(check.verdict is Verdict.INCONCLUSIVE for check in checks)
    if not checks:
        raise ValueError("a claim must have at least one check, got none")
    if passed >= enough:
        verdict = Verdict.PASS
    elif passed + open_still >= enough:
        verdict = Verdict.INCONCLUSIVE
    else:
        verdict = Verdict.FAIL
    found = Finding(verdict, tuple(checks), reason)
    if verdict is Verdict.FAIL and explained_by and all(check.verdict is Verdict.PASS for check in explained_by):
        return replace(found, verdict=Verdict.EXPLAINED, explanation=tuple(explained_by))
    return replace(found, explanation=tuple(explained_by)) if verdict is not Verdict.PASS else found


def _estimate(value: Estimate | float) -> Estimate:
    return value if isinstance(value, Estimate) else exactly(value)


def _compared(what: str, value: Estimate, threshold: float, neutral: float | None, rising: bool) -> Check:
    sign = 1 if rising else -1
    near, far = (value.low, value.high) if rising else (value.high, value.low)
    median_good = sign * (value.median - threshold) >= 0
    neutral_out = neutral is None or sign * (near - neutral) > 0
    if median_good and neutral_out:
        verdict = Verdict.PASS
    elif median_good or sign * (far - threshold) >= 0:
        verdict = Verdict.INCONCLUSIVE
    else:
        verdict = Verdict.FAIL
    beyond = "" if neutral is None else f", interval {'above' if rising else 'below'} {neutral:g}"
    return Check(what, value, f"{'>=' if rising else '<='} {threshold:.6g}{beyond}", verdict)
