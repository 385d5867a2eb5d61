"""Hold the simulator against real processes: no paper, but what the others rest on."""

from __future__ import annotations

from statistics import median

from dsgd.report.prediction import Pair, median_step_s, pairs, step_s
from studies.papers import CLAIMS, described
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Claim, Evidence
from studies.reproduction.verdict import Check, Finding


def g5(evidence: Evidence) -> Finding:
    """Compare simulated runs with those of real processes on four hosts: time of a step, and losses at the end."""
    losses: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    checks = _predicted(evidence["hosts"])
    for run in evidence["hosts"].runs:
        if run.final("test_loss") is not None:
            of_engine = losses.setdefault((run.setting("cluster.name"), run.algorithm), {"wall": {}, "virtual": {}})
            of_engine[str(run.clock)][run.setting("seed")] = run.final("test_loss")
    for (cluster, algo), engines in losses.items():
        real, simulated = engines["wall"], engines["virtual"]
        apart = median(abs(real[seed] - simulated[seed]) for seed in real)
        noise = max(simulated.values()) - min(simulated.values())
        what = f"{cluster}, `{algo}`: losses apart, over their range over seeds"
        checks.append(CLAIMS["G5"].check("losses", what, apart / noise))
    relieved = evidence["relieved"]
    explained_by = _predicted(relieved, " a quarter of the messages,")
    return CLAIMS["G5"].judged(checks, explained_by, relieved=_spread(relieved))


def _predicted(logged: Logged, condition: str = "") -> list[Check]:
    """Compare the predicted times of a step with the measured ones."""
    what = "{0.cluster}, `{0.algorithm}`:{1} time of a step, predicted over measured"
    return [CLAIMS["G5"].check("step", what.format(pair, condition), pair.ratio) for pair in _timed_pairs(logged)]


def _timed_pairs(logged: Logged) -> list[Pair]:
    """Return the predictions beside the measurements, of runs whose gradients pause as on an accelerator."""
    return pairs([run for run in logged.runs if run.setting("data.pause_s") != 0])


def _spread(logged: Logged) -> str:
    """Return the predicted time of a step over that of each measured run, from the smallest to the largest."""
    ranges = []
    for pair in _timed_pairs(logged):
        ratios = [median_step_s(pair.predicted) / step_s(run) for run in pair.measured]
        ranges.append(f"{min(ratios):.2f} to {max(ratios):.2f} with {pair.cluster}")
    return ", ".join(ranges)


PAPER = described("sanity", Claim(CLAIMS["G5"], g5))
