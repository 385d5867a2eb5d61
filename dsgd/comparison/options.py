"""Options of a comparison, `compare.*`: no part of any run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsgd.comparison.contenders import Prices
from dsgd.comparison.tuning import Axis
from dsgd.keys import check_options

ON = ("here", "slurm")
VERDICTS = ("time", "cost", "front")
MOST_VARIED = 2  # keys of a map
RATES: Mapping[str, Any] = {"optimizer.lr": [0.05, 0.8]}  # the tuned keys by default
RUNGS = 4  # of a ladder: a law of three numbers, and one to forecast
CLOSE = 1.05  # a bisection ends between two values that differ by no more than this factor
DIGITS = 4  # of the values that it tries, so that they can be typed


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
        """Return the value between two others to try next, their geometric mean; None if they are close enough."""
        if high <= low * CLOSE:
            return None
        if isinstance(self.low, int) and isinstance(self.high, int):
            value = round(math.sqrt(low * high))
            return min(max(value, int(low) + 1), int(high) - 1) if high - low > 1 else None
        return float(f"{math.sqrt(low * high):.{DIGITS}g}")

    @property
    def halvings(self) -> int:
        """Return an estimate of the number of values that a seed needs between the two ends."""
        return max(0, math.ceil(math.log2(math.log(self.high / self.low) / math.log(CLOSE))))


@dataclass(frozen=True)
class CompareOptions:
    """Options of `compare.*`, as conf/compare.yaml explains them."""

    contenders: list[Any] | None = None
    tune: Mapping[str, Any] | None = None
    tune_seeds: int = 1
    tune_values: int = 16
    tune_fine: bool = False
    validation: float = 0.1
    seeds: int = 5
    whatif: Mapping[str, Any] | None = None
    crossing: str | None = None
    bracket: list[Any] | None = None
    ladder: Mapping[str, Any] | None = None
    node_hour: float | None = None
    egress_gb: float | None = None
    verdict: str = "time"
    on: str = "here"

    def __post_init__(self) -> None:
        check_options(self, tune_seeds=">= 1", tune_values=">= 1", seeds=">= 1", validation="in (0, 1)")
        check_options(self, node_hour="> 0 or null", egress_gb="> 0 or null", verdict=VERDICTS)
        if self.verdict != "time" and self.prices is None:
            raise ValueError(f"verdict={self.verdict} needs compare.node_hour or compare.egress_gb, got neither")
        self._check_bracket()
        self._check_ladder()
        check_options(self, on=ON)
        for contender in self.contenders or []:
            if not isinstance(contender, Mapping) or not contender:
                raise ValueError(f"contenders must be a list of mappings like {{algo: gossip}}, got {contender!r}")
        if self.contenders is not None and not self.contenders:
            raise ValueError("contenders must have at least one, got []")
        for key, values in (self.whatif or {}).items():
            if not isinstance(values, list) or not values:
                raise ValueError(f"whatif.{key} must be a list of values, got {values!r}")
        if len(self.varied) > MOST_VARIED:
            raise ValueError(f"whatif must give several values to at most two keys, got {', '.join(self.varied)}")

    @property
    def varied(self) -> list[str]:
        """Return the keys of other conditions that have several values: the axes of the map."""
        return [key for key, values in (self.whatif or {}).items() if len(values) > 1]

    @property
    def search(self) -> Bracket | None:
        """Return the key and the range of the search for a crossing, or None."""
        return None if self.crossing is None or self.bracket is None else Bracket(self.crossing, *self.bracket)

    @property
    def prices(self) -> Prices | None:
        """Return the prices of the cluster; None if no price is given."""
        given = self.node_hour is not None or self.egress_gb is not None
        return Prices(self.node_hour or 0.0, self.egress_gb or 0.0) if given else None

    @property
    def deciding_prices(self) -> Prices | None:
        """Return the prices of a verdict by cost; None for another verdict."""
        return self.prices if self.verdict == "cost" else None

    def _check_bracket(self) -> None:
        if self.bracket is not None and self.crossing is None:
            raise ValueError(f"bracket needs compare.crossing=KEY, got {self.bracket} alone")
        if self.crossing is None:
            return
        ends = self.bracket
        if ends is None or len(ends) != 2 or not all(_is_number(value) for value in ends):
            raise ValueError(
                f"bracket must be [lowest, highest] of {self.crossing}, got {'null' if ends is None else ends}"
            )
        Bracket(self.crossing, *ends)

    def _check_ladder(self) -> None:
        for key, sizes in (self.ladder or {}).items():
            first, given = next(iter((self.ladder or {}).items()))
            numbers = [size_of(size) for size in sizes] if isinstance(sizes, list) else [None]
            known = [number for number in numbers if number is not None]
            if len(known) < max(RUNGS, len(numbers)) or sorted({*known}) != known:
                raise ValueError(f"ladder.{key} must be {RUNGS} ascending numbers or more, got {sizes!r}")
            if len(sizes) != len(given):
                raise ValueError(f"ladder.{key} must have {len(given)} sizes, as ladder.{first}, got {sizes!r}")
        for name in ("whatif", "crossing"):
            if self.ladder is not None and getattr(self, name) is not None:
                raise ValueError(f"{name} must be null with compare.ladder, got {getattr(self, name)}")
        if self.ladder is not None and (not self.ladder or self.seeds < 2):
            raise ValueError(f"ladder needs a key and compare.seeds >= 2, got {self.ladder} and {self.seeds}")

    def axes(self) -> list[Axis]:
        """Return the keys to tune. Raises ValueError."""
        axes: list[Axis] = []
        for key, ends in (RATES if self.tune is None else self.tune).items():
            numbers = isinstance(ends, list) and len(ends) == 2 and all(_is_number(value) for value in ends)
            if not numbers:
                raise ValueError(f"compare.tune.{key} must be [lowest, highest], got {ends!r}")
            try:
                axes.append(Axis(key, *ends))
            except ValueError as error:
                raise ValueError(f"compare.tune.{error}") from error
        return axes


def size_of(value: Any) -> float | None:
    """Return the size that a rung of a ladder has by a key's value: a number, or a list of one, as `model.hidden` is;
    None for another value."""
    number: Any = value[0] if isinstance(value, list) and len(value) == 1 else value
    return number if _is_number(number) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
