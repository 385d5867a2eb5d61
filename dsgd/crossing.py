"""Find the time when a curve of marks reached a level, by a stated rule, and the resolution of that time.

Marks sample a continuous curve, so the time of the first mark at or beyond the level is late by up to the distance of
two marks. Here the crossing is the point where the straight line between the two marks around it meets the level; their
distance is its resolution.

A curve is noisy near its level, and may meet it several times. Three rules say which crossing counts:

smoothed  the first of the smoothed curve: the value of every mark is replaced by the median of the marks in a window
          centred at it, of fewer marks at both ends. It reaches the level if most marks of a window have: one
          touch alone is no crossing, nor does one mark that falls back undo it. Where the curve is monotonic, it is
          its own smoothed curve. A mean would be drawn beyond the level by a single high mark, would shift the
          crossing of a curve that bends, and would give another answer for the loss than for its logarithm.
first     the first of the curve as it is: one touch is enough.
stable    the last of the curve as it is, if its last mark is at the level: one mark that falls back undoes all before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

CurvePoint = Sequence[float]  # time in seconds, value of a field

RULES = ("smoothed", "first", "stable")
WINDOW = 3  # marks


@dataclass(frozen=True)
class Crossing:
    """A curve reaching a level. time_s: time at which the line between two marks meets the level.

    resolution_s: distance of the two marks; 0 for a curve that starts at the level or beyond."""

    time_s: float
    resolution_s: float


@dataclass(frozen=True)
class Crossings:
    """The crossings of one curve, by each rule; None: it has none."""

    smoothed: Crossing | None
    first: Crossing | None
    stable: Crossing | None

    def by(self, rule: str) -> Crossing | None:
        """Return the crossing by a rule, one of RULES."""
        return {"smoothed": self.smoothed, "first": self.first, "stable": self.stable}[rule]


@dataclass(frozen=True)
class Aim:
    """A level that a field of the marks is to reach: a loss from above, everything else from below.

    rule: one of RULES. window: number of marks in the median of `smoothed`, odd."""

    field: str
    level: float
    rule: str = RULES[0]
    window: int = WINDOW

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"crossing must be one of {', '.join(RULES)}, got {self.rule!r}")
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 1 or self.window % 2 == 0:
            raise ValueError(f"window must be an odd number of marks >= 1, got {self.window!r}")

    @property
    def delay(self) -> int:
        """Return the number of later marks on which a mark's smoothed value depends."""
        return self.window // 2

    def is_reached(self, value: float) -> bool:
        """Check that a value is at the level or beyond."""
        return self._sign * value >= self._sign * self.level

    def crossing(self, before: CurvePoint | None, after: CurvePoint) -> Crossing | None:
        """Return the crossing between two marks, or None. before: None if `after` is the first mark."""
        if not self.is_reached(after[1]) or (before is not None and self.is_reached(before[1])):
            return None
        return self._meeting(before, after)

    def crossings(self, points: Sequence[CurvePoint]) -> list[Crossing]:
        """Return every crossing of a curve, in order of time. points: its marks, with finite values."""
        sign, level = self._sign, self._sign * self.level
        reached = [False, *(sign * value >= level for _, value in points)]
        firsts = [i for i, (before, now) in enumerate(pairwise(reached)) if now and not before]
        return [self._meeting(points[i - 1] if i else None, points[i]) for i in firsts]

    def smoothed(self, points: Sequence[CurvePoint]) -> list[CurvePoint]:
        """Return the smoothed curve of some marks: of an even number in a window the worse one of the middle two."""
        sign, delay = self._sign, self.delay
        rising = [sign * value for _, value in points]
        curve = []
        for i, (time_s, _) in enumerate(points):
            ascending = sorted(rising[max(0, i - delay) : i + delay + 1])
            curve.append((time_s, sign * ascending[(len(ascending) - 1) // 2]))
        return curve

    def crossings_of(self, points: Sequence[CurvePoint]) -> Crossings:
        """Return the crossings of a whole curve. points: its marks, with finite values."""
        smooth, plain = self.crossings(self.smoothed(points)), self.crossings(points)
        stays = bool(plain) and self.is_reached(points[-1][1])
        return Crossings(smooth[0] if smooth else None, plain[0] if plain else None, plain[-1] if stays else None)

    def _meeting(self, before: CurvePoint | None, after: CurvePoint) -> Crossing:
        """Return the crossing of the level and the line between two marks on both sides of it."""
        if before is None:
            return Crossing(after[0], 0.0)
        (start_s, low), (end_s, high) = before, after
        return Crossing(start_s + (self.level - low) / (high - low) * (end_s - start_s), end_s - start_s)

    @property
    def _sign(self) -> float:
        """Return the sign that makes values rise towards the level."""
        return -1.0 if self.field.endswith("loss") else 1.0
