"""What one sees in a comparison, in a few sentences made from the records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dsgd.report.labels import run_labels
from dsgd.report.runs import Run, number


def verdict(runs: Sequence[Run]) -> list[str]:
    """Sentences on who reached the target first, who never did, who diverged and who waited most; none for a single
    run."""
    if len(runs) < 2:
        return []
    named = list(zip(run_labels(runs), runs, strict=True))
    sentences = [*_first_to_target(named), *_ended_badly(named), *_most_idle(named)]
    return sentences


def _first_to_target(named: list[tuple[str, Run]]) -> list[str]:
    aiming = [(name, run) for name, run in named if run.target is not None]
    if len({run.target for _, run in aiming}) != 1:
        return []
    reached = sorted((run.time_to_target_s, name) for name, run in aiming if run.time_to_target_s is not None)
    goal = f"a test accuracy of {aiming[0][1].target:g}"
    never = [name for name, run in aiming if run.time_to_target_s is None and run.status == "completed"]
    sentences = [f"{goal} is never reached by {' or '.join(never)} within the budget"] if never else []
    if reached:
        best, first = reached[0]
        behind = [f"{name} {_times(seconds, best)}" for seconds, name in reached[1:]]
        text = f"{first} reaches {goal} first, after {best:.3g} s"
        sentences.insert(0, text + (f"; times as long: {', '.join(behind)}" if behind else ""))
    return sentences


def _times(seconds: float, best: float) -> str:
    return f"{seconds / best:.2f}" if best > 0 else "longer"


def _ended_badly(named: list[tuple[str, Run]]) -> list[str]:
    return [f"{name} {run.status}" for name, run in named if run.status in ("diverged", "failed", "interrupted")]


def _most_idle(named: list[tuple[str, Run]]) -> list[str]:
    idle = [(number(run.final("idle_fraction_mean")), name) for name, run in named]
    idle = sorted(pair for pair in idle if not math.isnan(pair[0]))
    if len(idle) < 2:
        return []
    (least, patient), (most, waiting) = idle[0], idle[-1]
    return [f"{waiting} waits most, its workers are idle {most:.0%} of the time; {patient} least, {least:.0%}"]
