"""Summarise seeds: their median and a confidence interval of it, which needs no assumption and no random numbers.

The interval goes from one of the sorted values to another (order statistics, as in the sign test). From six seeds on it
holds the true median with at least 95 %. Of fewer it goes from the smallest to the largest, and its confidence is
94 % (5 seeds), 88 % (4), 75 % (3) or 50 % (2): a bootstrap of so few values reaches no farther, and would say 95 %."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import median

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """Hold what the seeds of one configuration say of one number.

    median: NaN without any value; infinite where most runs never got there. low, high: the interval; both are the
    median where there is one value or all are equal. count: values. above, below: where values are censored, the same
    of what they are known to exceed, and of what they are known to stay below; None where nothing is. ratios: of a
    ratio, that of each seed, NaN where it is unknown; else none."""

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
    """Return median and interval of the values; NaNs are left out, infinities count as larger than all numbers.

    censored: for each value what it is known to exceed where it is infinite; infinite itself where nothing is known."""
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
    `outside` draws are left out at each end: 1 - 2 P(Binomial(count, 1/2) <= outside)."""
    return 1 - 2 * sum(math.comb(count, k) for k in range(outside + 1)) / 2**count


def interval_note(counts: Collection[int]) -> str:
    """Say what an interval is, and its confidence for each of these numbers of seeds; empty for single seeds."""
    shares = [f"{coverage(count, left_out(count)):.0%} from {count} seeds" for count in sorted({*counts} - {0, 1})]
    return f"median [interval] over seeds; confidence of the interval: {', '.join(shares)}" if shares else ""


def left_out(count: int, confidence: float = CONFIDENCE) -> int:
    """Return how many values at each end the interval can do without, and still have the confidence."""
    return next((k for k in range((count - 1) // 2, 0, -1) if coverage(count, k) >= confidence), 0)
