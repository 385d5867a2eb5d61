"""State the noise of one run beside a comparison of losses, so that a reader can judge a difference by one line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, variance

from dsgd.comparison.contenders import Comparison
from dsgd.record.reader import Run, number
from dsgd.report.interval import t_quantile

LATE = 0.75  # share of the samples, after which the slope at the end is measured
SURE = 0.99865  # probability of less than 3 deviations


def noise_line(comparison: Comparison) -> str:
    """Return the line on the noise of a run's loss at the end and on its slope, with the rule by which a difference is
    more than noise; empty where times or costs to a target are compared, and with one seed."""
    if comparison.aim is not None:
        return ""
    losses = [[loss for loss in standing.scores if math.isfinite(loss)] for standing in comparison.standings]
    return noise_text(losses, [late_slope(run) for run in comparison.runs])


def noise_text(losses: Sequence[Sequence[float]], slopes: Sequence[float]) -> str:
    """Return the line for these losses at the end, [seeds] of each contender, and late slopes, NaN where there is none;
    empty without a contender of two seeds.

    Chance exceeds its threshold, by Student's t, as often as three deviations of a normal distribution."""
    deviation = pooled_deviation(losses)
    if math.isnan(deviation):
        return ""
    noise = f"noise of one run: its loss at the end has a standard deviation of {deviation:.2g}"
    saved = ""
    if slopes := [slope for slope in slopes if not math.isnan(slope)]:
        falls = median(slopes)
        noise, saved = f"{noise} and falls by {falls:.2g} a step", f" + {falls:.2g} × steps saved"
    most = t_quantile(SURE, degrees_of_freedom(losses))
    return f"{noise}; (difference{saved}) / ({deviation:.2g} √(1/n₁ + 1/n₂)) above {most:.1f} is more than noise"


def degrees_of_freedom(groups: Sequence[Sequence[float]]) -> int:
    """Return the degrees of freedom of `pooled_deviation`."""
    return sum(len(group) - 1 for group in groups if group)


def pooled_deviation(groups: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of a value about the mean of its group, pooled over groups; NaN without a group of
    two."""
    several = [group for group in groups if len(group) > 1]
    if not several:
        return math.nan
    return math.sqrt(sum((len(group) - 1) * variance(group) for group in several) / degrees_of_freedom(groups))


def late_slope(run: Run) -> float:
    """Return by how much the test loss falls in a step of each worker, over the last quarter of a run, by least
    squares; NaN with fewer than two marks there."""
    total, steps = number(run.final("samples")), number(run.final("steps"))
    marks = [(number(mark.get("samples")), number(mark.get("test_loss"))) for mark in run.metrics]
    late = [(steps * samples / total, loss) for samples, loss in marks if samples >= LATE * total > 0]
    late = [(step, loss) for step, loss in late if math.isfinite(loss)]
    if len({step for step, _ in late}) < 2:
        return math.nan
    middle, mean = (sum(column) / len(late) for column in zip(*late, strict=True))
    products = sum((step - middle) * (mean - loss) for step, loss in late)
    return products / sum((step - middle) ** 2 for step, _ in late)
