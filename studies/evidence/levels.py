"""Follow a ratio of two contenders over the level of loss, from early to as deep as their pipelines go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from dsgd.report.interval import Estimate
from studies.evidence.contrast import clock_of
from studies.evidence.paired_t import REPLICATES, interval_of
from studies.evidence.pipeline import Candidate, Missing, Pipelines, crossing, losses_around
from studies.evidence.tasks import IMAGES, TARGETS
from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart

LEVELS = {"shapes": (0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3), "fashion": (0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.4)}

Points = list[tuple[float, Estimate]]  # level, ratio


def over_levels(first: Candidate, second: Candidate, pipelines: Pipelines, jitter: float | None = None) -> Points:
    """Return the steps of the first contender over those of the second, at every level that enough replicates of both
    begin above. jitter: of the gradient time, for the ratio of seconds in place of steps; all-reduce overlaps."""
    points = Points()
    for level in LEVELS[first.task]:
        ratios = list[float]()
        for replicate in range(REPLICATES[-1]):
            try:
                lengths = [_length(cell, level, pipelines, replicate, jitter) for cell in (first, second)]
            except (Missing, ValueError):  # a run is missing, or a curve begins below the level
                break
            ratios.append(lengths[0] / lengths[1])
        if len(ratios) >= REPLICATES[0]:
            points.append((level, interval_of(ratios)))
    return points


def drawn_over_levels(
    title: str, y: str, lines: Callable[[str], Sequence[ChartLine]], level: float | None = None
) -> Figure | None:
    """Draw lines of `over_levels`, a panel for each task; nothing while one has none. lines: returns those of a task.
    title: behind the name of the task. level: of a line across."""
    panels = [ChartPanel(f"{task}, {title}", "test loss", y, lines(task), level=level) for task in IMAGES]
    return chart(*panels) if all(any(line.points for line in panel.lines) for panel in panels) else None


def _length(cell: Candidate, level: float, pipelines: Pipelines, replicate: int, jitter: float | None) -> float:
    """Return the steps or the seconds to a level. Raises Missing, and ValueError as `crossing` does."""
    curve = losses_around(cell, replicate, TARGETS[cell.task], pipelines.trials)
    step_s = 1.0 if jitter is None else pipelines.step_s(clock_of(cell, True, jitter, replicate))
    return crossing(curve, level) * step_s
