"""Follow a ratio of two contenders over the level of loss, from early to a tenth or more below the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from matplotlib.figure import Figure

from dsgd.report.interval import Estimate
from studies.evidence.contrast import Contrast, seconds, steps
from studies.evidence.pipeline import Candidate, Missing, Pipelines
from studies.evidence.tasks import IMAGES
from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart

LEVELS = {"shapes": (0.7, 0.6, 0.5, 0.4, 0.35, 0.3, 0.25), "fashion": (0.7, 0.6, 0.5, 0.45, 0.4, 0.35)}

Points = list[tuple[float, Estimate]]  # level, ratio


def over_levels(first: Candidate, second: Candidate, pipelines: Pipelines, jitter: float | None = None) -> Points:
    """Return the steps of the first contender over those of the second, to every level to which enough replicates of
    both have runs. jitter: of the gradient time, for the ratio of seconds in place of steps; all-reduce overlaps."""
    points = Points()
    for level in LEVELS[first.task]:
        numerator, denominator = (
            steps(cell, level) if jitter is None else seconds([cell], level, jitter=jitter) for cell in (first, second)
        )
        with suppress(Missing):
            points.append((level, Contrast("steps", "", numerator, denominator).value(pipelines)))
    return points


def drawn_over_levels(
    title: str, y: str, lines: Callable[[str], Sequence[ChartLine]], level: float | None = None
) -> Figure | None:
    """Draw lines of `over_levels`, a panel for each task; nothing while one has none. lines: returns those of a task.
    title: behind the name of the task. level: of a line across."""
    panels = [ChartPanel(f"{task}, {title}", "test loss", y, lines(task), level=level) for task in IMAGES]
    return chart(*panels) if all(any(line.points for line in panel.lines) for panel in panels) else None
