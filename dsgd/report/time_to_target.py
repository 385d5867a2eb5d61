"""Find in a record when the run reached its target, by each rule of `dsgd.crossing`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dsgd.crossing import WINDOW, Aim, Crossing, Crossings, CurvePoint
from dsgd.record.reader import Run, number

EARLIER_RULE = "stable"  # of records that were made before there was a choice


def crossings(run: Run, level: float | None = None) -> Crossings:
    """Return the crossings of the run's target; marks without a number are left out. level: instead of the target's.

    `first` is what the curve shows. A run that diverged or collapsed has no other: it has reached nothing."""
    aim = _aim(run)
    if aim is None:
        return Crossings(None, None, None)
    if level is not None:
        aim = replace(aim, level=level)
    marks = [(number(mark.get("time_s")), number(mark.get(aim.field))) for mark in run.metrics]
    known: list[CurvePoint] = [mark for mark in marks if not math.isnan(sum(mark))]
    reached = aim.crossings_of(known)
    return reached if _counts(run) else Crossings(None, reached.first, None)


def target_crossing(run: Run, rule: str | None = None) -> Crossing | None:
    """Return the crossing by which the run reached its target; None if it did not, and if it diverged or collapsed.

    rule: of `dsgd.crossing.RULES`; None: the run's own, `target.crossing`."""
    return crossings(run).by(rule or rule_of(run)) if _counts(run) else None


def time_to_target_s(run: Run, rule: str | None = None) -> float | None:
    """Return the seconds of the run's clock until `target_crossing`; None if there is none."""
    crossing = target_crossing(run, rule)
    return None if crossing is None else crossing.time_s


def censored_at_s(run: Run, rule: str | None = None) -> float | None:
    """Return how long a run went on that ended without having reached its target: longer than that its time to target
    is. None if it has reached it, has none, is still running, or diverged or collapsed, which more time would not help.
    """
    over = run.status != "running" and _counts(run)
    if not over or run.target is None or target_crossing(run, rule) is not None:
        return None
    time_s = number(run.final("time_s"))
    return None if math.isnan(time_s) else time_s


def seconds_to_target(run: Run, crossing: Crossing | None) -> float:
    """Return the seconds to a crossing of the run's target; infinite where the run has ended without, NaN where that is
    not known yet."""
    if crossing is not None:
        return crossing.time_s
    return math.nan if run.target is None or run.status == "running" else math.inf


def end_s(run: Run, rule: str | None = None) -> float:
    """Return what the time to target of a run is known to exceed if it did not reach it; infinite if it never will."""
    end = censored_at_s(run, rule)
    return math.inf if end is None else end


def rule_of(run: Run) -> str:
    """Return the rule by which the run's crossing counts."""
    return str(run.setting("target.crossing") or EARLIER_RULE)


def rule_text(runs: Sequence[Run]) -> str:
    """Say by which rule the runs reached their targets: `by the median of 3 marks in a row`."""
    texts = []
    for run in runs:
        if (aim := _aim(run)) is not None:
            smoothed = f"by the median of {aim.window} marks in a row" if aim.window > 1 else "for the first time"
            texts.append({"smoothed": smoothed, "first": "for the first time", "stable": "for good"}[aim.rule])
    return " or ".join(dict.fromkeys(texts))


def ends_unsmoothed(run: Run) -> bool:
    """Check that a run has missed its target although its last mark is at it: too few marks for the smoothed curve."""
    aim = _aim(run)
    if aim is None or not run.metrics or censored_at_s(run) is None:
        return False
    return aim.is_reached(number(run.metrics[-1].get(aim.field)))


def unsmoothed_note(runs: Sequence[Run]) -> str:
    """Say how many runs `ends_unsmoothed`, and what to do about it; empty where none does."""
    if not (some := [run for run in runs if ends_unsmoothed(run)]):
        return ""
    counts = sorted({len(run.metrics) for run in some})
    marks = f"{counts[0]} marks" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} marks"
    end = "1 run ends" if len(some) == 1 else f"{len(some)} runs end"
    return (
        f"{end} at the target without having reached it {rule_text(some)}: {marks} are too few; "
        "evaluate more often (eval.every_time_s, eval.every_steps) or set target.crossing=first"
    )


def _counts(run: Run) -> bool:
    return run.outcome not in ("diverged", "collapsed")


def _aim(run: Run) -> Aim | None:
    """Return what the run aims at, None without a target. Raises ValueError for a rule that there is not."""
    if run.target is None or run.target_field is None:
        return None
    window = run.setting("target.window")
    try:
        return Aim(run.target_field, run.target, rule_of(run), WINDOW if window is None else window)
    except ValueError as error:
        raise ValueError(f"{run.folder}: target.{error}") from error
