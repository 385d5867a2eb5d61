"""Options of a comparison, `compare.*`: no part of any run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsgd.contest.tuning import Axis

ON = ("here", "slurm")
MOST_VARIED = 2  # keys of a map
RATES: Mapping[str, Any] = {"optimizer.lr": [0.05, 0.8]}  # what is tuned unless told otherwise


@dataclass(frozen=True)
class CompareOptions:
    """Options of `compare.*`, as conf/compare.yaml explains them."""

    contenders: list[Any] | None = None
    tune: Mapping[str, Any] | None = None
    tune_seeds: int = 1
    tune_values: int = 16
    validation: float = 0.1
    seeds: int = 5
    whatif: Mapping[str, Any] | None = None
    node_hour: float | None = None
    on: str = "here"

    def __post_init__(self) -> None:
        for name in ("tune_seeds", "tune_values", "seeds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if not 0 < self.validation < 1:
            raise ValueError(f"validation must be in (0, 1), got {self.validation}")
        if self.node_hour is not None and not self.node_hour > 0:
            raise ValueError(f"node_hour must be > 0 or null, got {self.node_hour}")
        if self.on not in ON:
            raise ValueError(f"on must be one of {', '.join(ON)}, got {self.on!r}")
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

    def axes(self) -> list[Axis]:
        """Return the keys to tune. Raises ValueError."""
        found = []
        for key, ends in (RATES if self.tune is None else self.tune).items():
            numbers = isinstance(ends, list) and len(ends) == 2 and all(_is_number(value) for value in ends)
            if not numbers:
                raise ValueError(f"compare.tune.{key} must be [lowest, highest], got {ends!r}")
            try:
                found.append(Axis(key, *ends))
            except ValueError as error:
                raise ValueError(f"compare.tune.{error}") from error
        return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
