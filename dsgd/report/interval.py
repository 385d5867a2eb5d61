"""Summarise seeds: their median with a confidence interval, without assumptions and random numbers; and compare two
contenders by the median of the ratios of their values with the same seed.

The interval goes from one of the sorted values to another (order statistics, as in the sign test). From six seeds on it
contains the true median with at least 95 %. With fewer it goes from the smallest to the largest, and its confidence is
94 % (5 seeds), 88 % (4), 75 % (3) or 50 % (2): a bootstrap of these values is no longer, and would claim 95 %.

The paired ratio is the only definition of "times as long" and of a speed-up. A seed's common effect on both does not
widen its interval. It is not the ratio of two medians, which may lie on the other side of 1."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import median

CONFIDENCE = 0.95
PAIRED = "median over seeds of the ratio of both times of a seed"


@dataclass(frozen=True)
class Estimate:
    """Hold the estimate of one number from the seeds of one configuration.

    median: NaN without values; infinite if most runs missed the target. low, high: the interval; both are the median
    for one value, or if all are equal. count: number of values. above, below: estimates from the lower and from the
    upper bounds of censored values; None without bounds. ratios: the ratio for each seed, NaN if unknown; empty for
    other numbers."""

    median: float
    low: float
    high: float
    count: int
    above: Estimate | None = None
    below: Estimate | None = None
    ratios: tuple[float, ...] = field(default=(), compare=False, repr=False)


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)  # of no values


def estimate(
    values: Sequence[float], confidence: float = CONFIDENCE, censored: Sequence[float] | None = None
) -> Estimate:
    """Return median and interval of the values; NaNs are omitted, infinities count as larger than all numbers.

    censored: lower bound of each infinite value; infinite if unknown."""
    known = sorted(value for value in values if not math.isnan(value))
    if not known:
        return NOTHING
    outside = left_out(len(known), confidence)
    above = None
    if censored is not None and math.isinf(known[-1]):
        pairs = zip(values, censored, strict=True)
        above = estimate([end if math.isinf(value) else value for value, end in pairs], confidence)
    return Estimate(median(known), known[outside], known[-1 - outside], len(known), above)


def coverage(count: int, outside: int = 0) -> float:
    """Return the probability that the median of a continuous distribution lies within `count` draws of it, when
    `outside` draws are omitted at each end: 1 - 2 P(Binomial(count, 1/2) <= outside)."""
    return 1 - 2 * sum(math.comb(count, k) for k in range(outside + 1)) / 2**count


def interval_note(counts: Collection[int]) -> str:
    """Return the explanation of an interval, with its confidence for each of these numbers of seeds; empty for single
    seeds."""
    shares = [f"{coverage(count, left_out(count)):.0%} from {count} seeds" for count in sorted({*counts} - {0, 1})]
    return f"median [interval] over seeds; confidence of the interval: {', '.join(shares)}" if shares else ""


def left_out(count: int, confidence: float = CONFIDENCE) -> int:
    """Return the number of values at each end that the interval can omit with this confidence."""
    return next((k for k in range((count - 1) // 2, 0, -1) if coverage(count, k) >= confidence), 0)


def paired_ratio(
    scores: Sequence[float],
    reference: Sequence[float],
    confidence: float = CONFIDENCE,
    ends: Sequence[float] | None = None,
    reference_ends: Sequence[float] | None = None,
) -> Estimate:
    """Return median and interval of the ratios of two contenders' scores, seed by seed. scores, reference: [seeds],
    infinite if the target was missed.

    A seed on which both missed the target decides nothing: its ratio counts as 0 for the low end and as infinite for
    the high one, so the interval also holds for a longer budget. The median is NaN if it depends on such seeds. ends,
    reference_ends: lower bounds of censored scores; infinite for a run that diverged. With them, a finite end of the
    interval also holds for censored ratios. A median between two bounds is infinite if it exceeds 1, 0 if it stays
    below 1, and otherwise NaN."""
    pairs = list(zip(scores, reference, strict=True))
    ratios = tuple(_ratio(score, other) for score, other in pairs)
    least, most = (
        estimate([undecided if math.isnan(ratio) else ratio for ratio in ratios], confidence)
        for undecided in (0.0, math.inf)
    )
    middle = least.median if least.median == most.median else math.nan
    if ends is None or reference_ends is None or not any(map(math.isinf, (*scores, *reference))):
        return Estimate(middle, least.low, most.high, len(pairs), ratios=ratios)
    bounds = [_bounds(*pair, *known) for pair, *known in zip(pairs, ends, reference_ends, strict=True)]
    above, below = (estimate(side, confidence) for side in zip(*bounds, strict=True))
    if math.isfinite(middle) and middle > 0 and above.median < below.median:
        middle = math.inf if above.median > 1 else 0.0 if below.median < 1 else math.nan
    low = least.low if math.isinf(least.low) else above.low
    high = most.high if most.high == 0 else below.high
    return Estimate(middle, low, high, len(pairs), above, below, ratios)


def _bounds(score: float, other: float, end: float, other_end: float) -> tuple[float, float]:
    """Return the lower and the upper bound of a seed's ratio; 0 and infinity if unknown."""
    if math.isinf(score) and math.isinf(other):
        return 0.0, math.inf
    if math.isinf(score):
        return (end / other if other > 0 else math.inf), math.inf
    if math.isinf(other):
        return 0.0, (0.0 if math.isinf(other_end) else score / other_end if other_end > 0 else math.inf)
    exact = _ratio(score, other)
    return exact, exact


def _ratio(score: float, other: float) -> float:
    """Return the ratio of a seed; NaN if both missed the target."""
    if math.isinf(score) and math.isinf(other):
        return math.nan
    if score == other:
        return 1.0
    if score > 0 and other > 0:
        return score / other
    return math.inf if score > other else 0.0  # a target reached at once, or a loss of 0: only the order is known


def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t, by bisection.

    probability: number in [0.5, 1). degrees: degrees of freedom, >= 1."""
    if not 0.5 <= probability < 1 or degrees < 1:
        raise ValueError(f"probability must be in [0.5, 1) and degrees >= 1, got {probability} and {degrees}")
    low, high = 0.0, 1.0
    while t_cumulative(high, degrees) < probability:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cumulative(middle, degrees) < probability else (low, middle)
    return high


def t_cumulative(t: float, degrees: int) -> float:
    """Return the probability that Student's t is at most t >= 0 (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine2 = math.sin(angle), math.cos(angle) ** 2
    odd = degrees % 2
    term = total = math.cos(angle) if odd else 1.0
    for k in range(1, (degrees - 1) // 2 if odd else degrees // 2):
        term *= cosine2 * (2 * k / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
        total += term
    inside = 2 / math.pi * (angle + (sine * total if degrees > 1 else 0)) if odd else sine * total
    return 0.5 + inside / 2
