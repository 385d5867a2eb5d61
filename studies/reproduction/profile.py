"""Draw the performance profile: in which share of the settings an algorithm is within a factor of the best.

A setting is what all contenders of a comparison share: paper, study, nodes, data, cluster. An algorithm counts by its
best contender there, with the median time to the target over the seeds; where that is infinite it is within no factor
(Dolan and Moré 2002; Dahl et al. 2023, arXiv 2306.07179)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from dsgd.report.contest import Contender
from dsgd.report.interval import Estimate, estimate
from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart
from studies.reproduction.logged import Logged
from studies.reproduction.paired import RULE, scores
from studies.reproduction.verdict import exactly

FEWEST = 5  # settings of an algorithm that is drawn
WIDEST = 10.0  # factor that is drawn
OF_CONTENDER = ("algo", "topology", "optimizer", "seed", "eval", "budget", "engine")  # not of the setting

Scores = Mapping[str, float]  # median seconds to the target in one setting, by algorithm


@dataclass(frozen=True)
class Profile:
    """One algorithm. factors: times over those of the best, ascending, one for each setting; infinite for never."""

    algo: str
    factors: Sequence[float]

    def share(self, factor: float) -> float:
        """Return the share of the settings in which the algorithm is within a factor of the best."""
        return sum(ratio <= factor for ratio in self.factors) / len(self.factors)


def profiles(settings: Iterable[Scores]) -> list[Profile]:
    """Return the profile of every algorithm. Settings in which no algorithm reached the target, or only one
    competed, are left out, and so are algorithms in fewer settings than FEWEST."""
    factors: dict[str, list[float]] = {}
    for seconds in settings:
        best = min(seconds.values(), default=math.inf)
        if len(seconds) > 1 and math.isfinite(best):
            for algo, value in seconds.items():
                factors.setdefault(algo, []).append(value / best if math.isfinite(value) else math.inf)
    return [Profile(algo, sorted(values)) for algo, values in factors.items() if len(values) >= FEWEST]


def settings_of(logged: Logged, rule: str | None = RULE) -> list[Scores]:
    """Return the scores in each setting of a study with a target; none of another. rule: of the crossing; None: the
    run's own."""
    by_setting: dict[str, dict[str, float]] = {}
    for contender in (*logged.contenders, *(contender for cell in logged.elsewhere for contender in cell.contenders)):
        if all(run.target is not None for run in contender.runs):
            seconds = estimate(scores(contender, rule)).median
            of_setting = by_setting.setdefault(_setting(contender), {})
            of_setting[contender.algo] = min(seconds, of_setting.get(contender.algo, math.inf))
    return list(by_setting.values())


def profile_figure(profiles: Sequence[Profile]) -> Figure:
    """Draw the shares against the factor."""
    lines = [
        ChartLine(f"{profile.algo} ({len(profile.factors)})", profile.algo, _steps(profile), variant=i, markers=False)
        for i, profile in enumerate(profiles)
    ]
    panel = ChartPanel("", "times the best time to the target", "share of the settings", lines, log_x=True)
    return chart([panel], ["in brackets: settings in which the algorithm competed"])


def _steps(profile: Profile) -> list[tuple[float, Estimate]]:
    """Return the corners of the share, which jumps at every factor."""
    points, share = [(1.0, exactly(profile.share(1.0)))], profile.share(1.0)
    for factor in sorted({value for value in profile.factors if 1 < value <= WIDEST}):
        points += [(factor, exactly(share)), (factor, exactly(share := profile.share(factor)))]
    return [*points, (WIDEST, exactly(share))]


def _setting(contender: Contender) -> str:
    """Return what the contenders of a setting share, as text."""
    config = {key: value for key, value in contender.runs[0].config.items() if key not in OF_CONTENDER}
    cluster = {key: value for key, value in config.get("cluster", {}).items() if key != "collective"}
    return json.dumps(config | {"cluster": cluster}, sort_keys=True, default=str)
