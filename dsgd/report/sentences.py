"""Say in sentences what some runs show: who was first and by how much, who never got there, and who was idle most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from dsgd.record.reader import Run, number
from dsgd.report.fields import time_to_target_s, unsmoothed_note
from dsgd.report.interval import Estimate
from dsgd.report.labels import Series, goal_text, series, status_note
from dsgd.report.prediction import sentences
from dsgd.report.ratio import time_ratio

_OF_CLOCK = {"virtual": "of virtual time", "wall": "of wall time on the machine it ran on"}


def verdict(runs: Sequence[Run]) -> list[str]:
    """Say who reached the target first and who never did, who did not complete or collapsed and who was idle most.

    Of several seeds the median counts, and of times as long the median of the ratios of the same seed. Returns no
    sentence where there is nothing to compare. Virtual and wall times are compared only in the sentence on predictions
    and measurements."""
    compared = series(runs)
    if len(compared) < 2:
        return []
    clocks = sorted({clock for group in compared if (clock := _clock(group))})
    timed = [[group for group in compared if _clock(group) in (clock, None)] for clock in clocks]
    rivals = [(clock, groups) for clock, groups in zip(clocks, timed, strict=True) if len(groups) > 1]
    first = [text for clock, groups in rivals for text in _first_to_target(groups, clock)]
    idle = [text for _, groups in rivals for text in _most_idle(groups)]
    texts = [*first, unsmoothed_note(runs), *_ended_badly(compared), *idle, *sentences(runs)]
    return [text for text in texts if text]


def _clock(group: Series) -> str | None:
    return next((run.clock for run in group.runs if run.clock), None)


def _first_to_target(compared: Sequence[Series], clock: str) -> list[str]:
    targets = {(run.target_field, run.target) for group in compared for run in group.runs}
    if len(targets) != 1 or (None, None) in targets:
        return []
    kind, _, level = goal_text(compared[0].runs).rpartition(" ")
    goal = f"a {kind} of {level}"
    reached: list[tuple[float, Series]] = []
    missed: list[str] = []
    for group in compared:
        known = [seconds for run in group.runs if (seconds := time_to_target_s(run)) is not None]
        without, count = len(group.runs) - len(known), len(group.runs)
        if not without:
            reached.append((median(known), group))
        elif all(run.status == "completed" for run in group.runs):
            missed.append(f"{group.label} ({without} of {count} seeds)" if known else group.label)
    texts = []
    if reached:
        best_s, first = min(reached, key=lambda each: (_sooner(each[1], reached), each[0], each[1].label))
        slower = [each for each in reached if each[1] is not first]
        others = [(seconds, group, time_ratio(group.runs, first.runs)) for seconds, group in slower]
        others.sort(key=lambda each: (math.isnan(each[2].median), each[2].median, each[0], each[1].label))
        behind = [f"{group.label} {_ratio_text(seconds, ratio)}" for seconds, group, ratio in others if best_s > 0]
        text = f"{first.label} reaches {goal} first, after {best_s:.3g} s {_OF_CLOCK[clock]}"
        texts.append(text + (f"; times as long, seed by seed: {', '.join(behind)}" if behind else ""))
    if missed:
        texts.append(f"{goal} is not reached within the budget by {', '.join(missed)}")
    return texts


def _sooner(group: Series, reached: Sequence[tuple[float, Series]]) -> int:
    """Return how many others are sooner than one on most of the seeds that both have."""
    return sum(time_ratio(other.runs, group.runs).median < 1 for _, other in reached if other is not group)


def _ratio_text(seconds: float, ratio: Estimate) -> str:
    """Return a ratio with its interval over seeds; the median time of who has no seed in common with the first."""
    if not ratio.count:
        return f"({seconds:.3g} s, no seed in common)"
    interval = f" [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio.low < ratio.high else ""
    return f"{ratio.median:.2f}{interval}"


def _ended_badly(compared: Sequence[Series]) -> list[str]:
    texts = []
    for group in compared:
        if note := status_note(group.runs):
            completed = all(run.status == "completed" for run in group.runs)
            texts.append(f"{'ended worse than it began' if completed else 'did not complete'}: {group.label}{note}")
    return texts


def _most_idle(compared: Sequence[Series]) -> list[str]:
    idle: list[tuple[float, str]] = []
    for group in compared:
        shares = [number(run.final("idle_fraction_mean")) for run in group.runs]
        if all(share == share for share in shares):  # not NaN
            idle.append((median(shares), group.label))
    if len(idle) < 2 or min(idle)[0] == max(idle)[0]:
        return []
    (least, patient), (most, waiting) = min(idle), max(idle)
    return [f"{waiting} waits most, its workers are idle {most:.0%} of the time; {patient} least, {least:.0%}"]
