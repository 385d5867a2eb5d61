"""Compare times, or losses, seed by seed: the median over the seeds of the ratio of two values of the same seed.

This is the one definition of "times as long" and of a speed-up in all tables, figures, maps and
verdicts. What a seed does to both widens nothing. It is not the ratio of two medians, which may be on either side of 1
when this one is on the other.

A value is censored where a run ended without having reached its target: all that is known is that its time is longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dsgd.record.reader import Run
from dsgd.report.fields import end_of, field_value
from dsgd.report.interval import CONFIDENCE, NOTHING, Estimate, estimate

PAIRED = "median over seeds of the ratio of both times of a seed"


def paired_ratio(
    scores: Sequence[float],
    reference: Sequence[float],
    confidence: float = CONFIDENCE,
    ends: Sequence[float] | None = None,
    reference_ends: Sequence[float] | None = None,
) -> Estimate:
    """Return median and interval of the ratios of two contenders' scores, seed by seed. scores, reference: [seeds],
    infinite where the target was not reached.

    A seed on which neither got there decides nothing: its ratio counts as 0 for the low end and as infinite for the
    high one, so that the interval holds whatever a longer budget would have shown. The median is NaN where it depends
    on such seeds. ends, reference_ends: what a censored score is known to exceed; infinite for a run that diverged.
    With them an end that is a number holds for the censored ratios, too, and a median between two bounds is infinite
    where it exceeds 1, 0 where it stays below 1, and else NaN."""
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


def time_ratio(runs: Sequence[Run], reference: Sequence[Run], name: str = "time_to_target_s") -> Estimate:
    """Return the ratio of a field of some runs, a time or a rate, to that of others with the same seed; NaN where no
    seed is in both. Runs that share a seed are paired in their order, those without a number yet are left out."""
    pairs = [pair for pair in by_seed(runs, reference) if not any(math.isnan(field_value(run, name)) for run in pair)]
    if not pairs:
        return NOTHING
    values, references = ([field_value(pair[i], name) for pair in pairs] for i in (0, 1))
    ends, reference_ends = ([end_of(pair[i], name) for pair in pairs] for i in (0, 1))
    return paired_ratio(values, references, CONFIDENCE, ends, reference_ends)


def by_seed(runs: Sequence[Run], reference: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Return the pairs of runs with the same seed; those that share a seed are paired in their order."""
    left = list(reference)
    pairs = []
    for run in runs:
        other = next((other for other in left if other.setting("seed") == run.setting("seed")), None)
        if other is not None:
            left.remove(other)
            pairs.append((run, other))
    return pairs


def _bounds(score: float, other: float, end: float, other_end: float) -> tuple[float, float]:
    """Return what the ratio of a seed is known to exceed and to stay below; 0 and infinity where nothing is known."""
    if math.isinf(score) and math.isinf(other):
        return 0.0, math.inf
    if math.isinf(score):
        return (end / other if other > 0 else math.inf), math.inf
    if math.isinf(other):
        return 0.0, (0.0 if math.isinf(other_end) else score / other_end if other_end > 0 else math.inf)
    exact = _ratio(score, other)
    return exact, exact


def _ratio(score: float, other: float) -> float:
    """Return the ratio of a seed; NaN where neither got there."""
    if math.isinf(score) and math.isinf(other):
        return math.nan
    if score == other:
        return 1.0
    if score > 0 and other > 0:
        return score / other
    return math.inf if score > other else 0.0  # a target reached at once, or a loss of 0: only who is first is known
