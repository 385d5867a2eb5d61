"""Draw the performance profile: in which share of the settings an algorithm is within a factor of the best.

A setting is what contenders share: task, nodes, overlap and jitter. All contenders are in all settings that count
(Dolan and Moré 2002; Dahl et al. 2023, arXiv 2306.07179)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from studies.reproduction.chart_panels import ChartPanel, chart, line_of

FEWEST = 5  # settings that are drawn
WIDEST = 10.0  # factor that is drawn

Scores = Mapping[str, float]  # seconds to the target in one setting, by algorithm


@dataclass(frozen=True)
class Profile:
    """One algorithm. factors: times over those of the best, ascending, one for each setting; infinite for never."""

    algo: str
    factors: Sequence[float]

    def share(self, factor: float) -> float:
        """Return the share of the settings in which the algorithm is within a factor of the best."""
        return sum(ratio <= factor for ratio in self.factors) / len(self.factors)


def profiles(settings: Iterable[Scores]) -> list[Profile]:
    """Return the profile of every algorithm, over settings that have the same algorithms; none of fewer than FEWEST.
    Raises ValueError for settings of other algorithms."""
    known = [scores for scores in settings if math.isfinite(min(scores.values()))]
    if any(scores.keys() != known[0].keys() for scores in known):
        raise ValueError("settings must have the same algorithms, got others")
    if len(known) < FEWEST:
        return []
    return [Profile(algo, sorted(scores[algo] / min(scores.values()) for scores in known)) for algo in known[0]]


def profile_figure(profiles: Sequence[Profile]) -> Figure:
    """Draw the shares against the factor."""
    lines = [line_of(each.algo, each.algo, _steps(each), i, markers=False) for i, each in enumerate(profiles)]
    panel = ChartPanel("", "times the best time to the target", "share of the settings", lines, log_x=True)
    return chart(panel, notes=[f"{len(profiles[0].factors)} settings"])


def _steps(profile: Profile) -> list[tuple[float, float]]:
    """Return the corners of the share, which jumps at every factor."""
    share = profile.share(1.0)
    points = [(1.0, share)]
    for factor in sorted({value for value in profile.factors if 1 < value <= WIDEST}):
        points += [(factor, share), (factor, share := profile.share(factor))]
    return [*points, (WIDEST, share)]
