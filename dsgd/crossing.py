"""Find when a curve of marks reached a level: interpolated between marks, with how finely it is known.

A mark samples a curve that goes on between marks, so the time of the first mark at or beyond the level is late by up to
the distance of two marks. Here the crossing is where the straight line between the two marks around it meets the
level; their distance is its resolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = Sequence[float]  # time in seconds, value of a field


@dataclass(frozen=True)
class Crossing:
    """A curve reaching a level. time_s: where the line between two marks meets the level.

    resolution_s: distance of the two marks; 0 for a curve that starts at the level or beyond."""

    time_s: float
    resolution_s: float


@dataclass(frozen=True)
class Aim:
    """A level that a field of the marks is to reach: a loss from above, everything else from below."""

    field: str
    level: float

    def is_reached(self, value: float) -> bool:
        """Check that a value is at the level or beyond."""
        return self._rising(value) >= self._rising(self.level)

    def crossing(self, before: Point | None, after: Point) -> Crossing | None:
        """Return the crossing between two marks; None if there is none. before: None: `after` is the first mark."""
        if not self.is_reached(after[1]) or (before is not None and self.is_reached(before[1])):
            return None
        if before is None:
            return Crossing(after[0], 0.0)
        (start_s, low), (end_s, high) = before, after
        return Crossing(start_s + (self.level - low) / (high - low) * (end_s - start_s), end_s - start_s)

    def crossings(self, points: Sequence[Point]) -> list[Crossing]:
        """Return every crossing of a curve, in order of time. points: its marks, with finite values."""
        found = (self.crossing(before, after) for before, after in pairwise([None, *points]) if after is not None)
        return [crossing for crossing in found if crossing is not None]

    def _rising(self, value: float) -> float:
        return -value if self.field.endswith("loss") else value
