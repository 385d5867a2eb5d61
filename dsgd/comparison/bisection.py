"""Bisect the value of a key at which one of two contenders overtakes the other, on a logarithmic scale, seed by seed.

A pure function of the scores so far, so that a comparison that was killed goes on as if it had not been."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

CLOSE = 1.05  # the search ends between two values that differ by no more than this factor
DIGITS = 4  # of the values that are tried, so that they can be typed


@dataclass(frozen=True)
class Bracket:
    """A key and the range of its values in which to search. Two integers: only integers are tried."""

    key: str
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise ValueError(
                f"bracket must be [lowest, highest] of {self.key}, finite, > 0 and ascending, got "
                f"[{self.low:g}, {self.high:g}]"
            )

    def middle(self, low: float, high: float) -> float | None:
        """Return the value between two others to try next, their geometric mean; None where they are close enough."""
        if high <= low * CLOSE:
            return None
        if isinstance(self.low, int) and isinstance(self.high, int):
            value = round(math.sqrt(low * high))
            return min(max(value, int(low) + 1), int(high) - 1) if high - low > 1 else None
        return float(f"{math.sqrt(low * high):.{DIGITS}g}")

    @property
    def halvings(self) -> int:
        """Return about how many values a seed needs between the two ends."""
        return max(0, math.ceil(math.log2(math.log(self.high / self.low) / math.log(CLOSE))))


@dataclass(frozen=True)
class Enclosure:
    """The two values between which the crossing of a seed lies. low: 0, high: infinite where no value bounds it. next:
    the value to try; None when the search is over."""

    low: float
    high: float
    next: float | None = None


def enclose(bracket: Bracket, ahead: Mapping[float, bool | None]) -> Enclosure:
    """Return what a seed says of the crossing. ahead: by the value of the key, whether the contender that leads at low
    values is ahead; None where neither is."""
    if missing := [value for value in (bracket.low, bracket.high) if value not in ahead]:
        return Enclosure(0.0, math.inf, missing[0])
    starts, goes_on = ahead[bracket.low], ahead[bracket.high]
    if starts is not True or goes_on is not False:
        # a seed that the bracket does not hold: its crossing lies outside, on the side that the ends tell, if they do
        above = bracket.high if starts and goes_on else bracket.low if starts else 0.0
        below = bracket.low if starts is False and goes_on is False else bracket.high if goes_on is False else math.inf
        return Enclosure(above, below)
    low, high = bracket.low, bracket.high
    while (value := bracket.middle(low, high)) is not None:
        if value not in ahead:
            return Enclosure(low, high, value)
        leads = ahead[value]
        if leads is None:
            break
        low, high = (value, high) if leads else (low, value)
    return Enclosure(low, high)
