"""Find when a run reached its target: interpolated between marks, at first and for good, and how finely it is known.

A mark samples a curve that goes on between marks, so the time of the first mark at or above the target is late by up to
the distance of two marks. Here the crossing is where the straight line between the two marks around it meets the
target; their distance is its resolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dsgd.record.reader import Run, number


@dataclass(frozen=True)
class Crossing:
    """A curve reaching a level from below. time_s: where the line between two marks meets the level.

    resolution_s: distance of the two marks; 0 for a curve that starts at or above the level."""

    time_s: float
    resolution_s: float


def crossings(times_s: Sequence[float], values: Sequence[float], level: float) -> list[Crossing]:
    """Return every crossing of the level from below, in order; a curve that starts at or above it begins with one.

    times_s: ascending, [marks]. values: [marks], finite. For a falling curve, negate values and level."""
    found = [Crossing(times_s[0], 0.0)] if values and values[0] >= level else []
    for (start_s, before), (end_s, after) in pairwise(zip(times_s, values, strict=True)):
        if before < level <= after:
            share = (level - before) / (after - before)
            found.append(Crossing(start_s + share * (end_s - start_s), end_s - start_s))
    return found


def first_crossing(run: Run) -> Crossing | None:
    """Return when the test accuracy reached the run's target for the first time; None if it did not."""
    found = _of_target(run)[0]
    return found[0] if found else None


def staying_crossing(run: Run) -> Crossing | None:
    """Return when the test accuracy reached the run's target and stayed there until the end; None if it did not.

    A curve that touches its target and falls back has not reached it, nor has a run that diverged or collapsed."""
    found, last = _of_target(run)
    stays = found and run.target is not None and last >= run.target and run.outcome not in ("diverged", "collapsed")
    return found[-1] if stays else None


def time_to_target_s(run: Run) -> float | None:
    """Return the seconds of the run's clock until the crossing that stays; None without a target or a crossing."""
    crossing = staying_crossing(run)
    return None if crossing is None else crossing.time_s


def _of_target(run: Run) -> tuple[list[Crossing], float]:
    """Return the crossings of the target, and the last test accuracy; marks without either number are left out."""
    marks = [(number(mark.get("time_s")), number(mark.get("test_accuracy"))) for mark in run.metrics]
    known = [(time_s, accuracy) for time_s, accuracy in marks if not math.isnan(time_s + accuracy)]
    if run.target is None or not known:
        return [], math.nan
    return crossings([time_s for time_s, _ in known], [accuracy for _, accuracy in known], run.target), known[-1][1]
