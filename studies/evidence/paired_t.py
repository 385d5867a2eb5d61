"""Judge a ratio by replicated pipelines: Student's t interval of the mean of its logarithm, paired by the replicate.

A replicate is a whole pipeline, so the luck of tuning and of seeds is in the spread, and nothing else is added for it.
Three replicates are made first. Where the interval at 99 % does not clear the threshold there are five, then eight. The
interval is the one that decided: at 99 % of three or five replicates, at 95 % of eight. Those at 95 % throughout would
hold the truth in 93 of 100 studies only, as they end when luck has made them short."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from dsgd.report.interval import CONFIDENCE, NOTHING, Estimate, t_quantile

REPLICATES = (3, 5, 8)  # after which a study may end
CLEAR = 0.99  # confidence at which an interval must clear the threshold for a study to end early


def ratio(values: Sequence[float], others: Sequence[float], confidence: float | None = None) -> Estimate:
    """Return the ratio of numbers >= 0, one pair for each replicate, with its interval. confidence: None: by the number
    of replicates.

    A number may be infinite, as of a run that diverged, or 0: the largest rate that learns, where none does. The ratio
    is infinite, or 0, where it is so in all replicates; unknown, with an interval from 0 to infinity, where in some."""
    ratios = tuple(value / other if other else value * math.inf for value, other in zip(values, others, strict=True))
    if not ratios:
        return NOTHING
    if set(ratios) in ({math.inf}, {0.0}):
        return Estimate(ratios[0], ratios[0], ratios[0], len(ratios), ratios=ratios)
    if not all(0 < ratio < math.inf for ratio in ratios):
        return Estimate(math.nan, 0.0, math.inf, len(ratios), ratios=ratios)
    middle, half = t_interval([math.log(ratio) for ratio in ratios], confidence)
    return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half), len(ratios), ratios=ratios)


def interval_of(values: Sequence[float]) -> Estimate:
    """Return the geometric mean of positive numbers, one for each replicate, with its interval."""
    return ratio(values, [1.0] * len(values))


def difference(values: Sequence[float], others: Sequence[float], confidence: float | None = None) -> Estimate:
    """Return the difference of numbers, one pair for each replicate, with its interval. confidence: as in `ratio`."""
    differences = [value - other for value, other in zip(values, others, strict=True)]
    if not differences:
        return NOTHING
    if set(differences) in ({math.inf}, {-math.inf}):
        return Estimate(differences[0], differences[0], differences[0], len(differences))
    if not all(map(math.isfinite, differences)):
        return Estimate(math.nan, -math.inf, math.inf, len(differences))
    middle, half = t_interval(differences, confidence)
    return Estimate(middle, middle - half, middle + half, len(differences))


def t_interval(values: Sequence[float], confidence: float | None = None) -> tuple[float, float]:
    """Return the mean and half the length of its interval; infinite of one value. confidence: as in `ratio`."""
    if len(values) < 2:
        return fmean(values), math.inf
    if confidence is None:
        confidence = confidence_of(len(values))
    return fmean(values), t_quantile((1 + confidence) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def confidence_of(replicates: int, checks: int = 1) -> float:
    """Return the confidence of the interval of a study that ends with so many replicates. checks: of which any may err:
    then the interval of each is longer."""
    return max(CONFIDENCE if replicates >= REPLICATES[-1] else CLEAR, 1 - (1 - CONFIDENCE) / checks)


def replicates_wanted(
    made: int, estimate: Callable[[float], Estimate], threshold: float, confidence: float = CLEAR
) -> int:
    """Return how many replicates decide whether a number meets a threshold: as many as are made, or more.

    estimate: returns the estimate by those that are made, at a confidence. confidence: at which a study ends early."""
    if made < REPLICATES[0]:
        return REPLICATES[0]
    measured = estimate(confidence)
    undecidable = math.isnan(measured.median)  # some replicates have no number, whatever others have
    if made >= REPLICATES[-1] or undecidable or not measured.low <= threshold <= measured.high:
        return made
    return next(count for count in REPLICATES if count > made)
