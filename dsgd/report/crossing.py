"""Find in a record when the run reached its target: at first and for good, see `dsgd.crossing`."""

from __future__ import annotations

import math

from dsgd.crossing import Aim, Crossing, Point
from dsgd.record.reader import Run, number


def first_crossing(run: Run) -> Crossing | None:
    """Return when the run reached its target for the first time; None if it did not."""
    found = _of_target(run)[0]
    return found[0] if found else None


def staying_crossing(run: Run) -> Crossing | None:
    """Return when the run reached its target and stayed there until the end; None if it did not.

    A curve that touches its target and falls back has not reached it, nor has a run that diverged or collapsed."""
    found, is_there = _of_target(run)
    return found[-1] if found and is_there and run.outcome not in ("diverged", "collapsed") else None


def time_to_target_s(run: Run) -> float | None:
    """Return the seconds of the run's clock until the crossing that stays; None without a target or a crossing."""
    crossing = staying_crossing(run)
    return None if crossing is None else crossing.time_s


def _of_target(run: Run) -> tuple[list[Crossing], bool]:
    """Return the crossings of the target, and whether the last mark is there; marks without a number are left out."""
    if run.target is None or run.target_field is None:
        return [], False
    aim = Aim(run.target_field, run.target)
    marks = [(number(mark.get("time_s")), number(mark.get(aim.field))) for mark in run.metrics]
    known: list[Point] = [mark for mark in marks if not math.isnan(sum(mark))]
    return aim.crossings(known), bool(known) and aim.is_reached(known[-1][1])
