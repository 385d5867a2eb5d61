"""Name keys of the configuration and write their values as figures do: in words, in units that suit the values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

Prefixes = tuple[tuple[str, float], ...]  # of a unit, with its size, ascending

BITS_PER_S: Prefixes = (("bit/s", 1.0), ("kbit/s", 1e3), ("Mbit/s", 1e6), ("Gbit/s", 1e9), ("Tbit/s", 1e12))
SECONDS: Prefixes = (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0))
BYTES: Prefixes = (("bytes", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))
SAMPLES: Prefixes = (("samples", 1.0),)

# what a key ends in: its unit
_UNITS: dict[str, Prefixes] = {
    "bandwidth": BITS_PER_S,
    "_bytes": BYTES,
    "_s": SECONDS,
    "samples": SAMPLES,
    "batch_size": SAMPLES,
}
_NAMES = {
    "algo": "algorithm",
    "batch_size": "batch size per node",
    "cluster.gradient_s": "time of a gradient",
    "cluster.message_bytes": "message size",
    "optimizer.lr": "learning rate",
    "optimizer.weight_decay": "weight decay",
}


@dataclass(frozen=True)
class Quantity:
    """A key as an axis shows it. name: in words. unit: empty for a plain number or a text. size: of the unit."""

    name: str
    unit: str = ""
    size: float = 1.0

    @property
    def label(self) -> str:
        """Return `bandwidth (Gbit/s)`."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def text(self, value: str) -> str:
        """Return a value in the unit of the axis, without it: `0.1`; what is no number as it is."""
        number = _number(value)
        return value if math.isnan(number) or not self.unit else f"{number / self.size:.6g}"


def quantity(key: str, values: Iterable[str]) -> Quantity:
    """Return a key for an axis with these values, in the unit that suits the middle of them."""
    name, units = _name(key), _units_of(key)
    numbers = sorted(number for value in values if (number := _number(value)) > 0 and math.isfinite(number))
    if units is None or not numbers:
        return Quantity(name)
    unit, size = _suiting(units, math.sqrt(numbers[0] * numbers[-1]))
    return Quantity(name, unit, size)


def assigned(short: str, key: str, value: str) -> str:
    """Return what a legend says of a key, `bandwidth=100 Mbit/s`. short: what the legend calls the key."""
    units, number = _units_of(key), _number(value)
    if units is None or not math.isfinite(number):
        return f"{short}={value}"
    unit, size = _suiting(units, abs(number) or 1.0)
    return f"{_bare(short)}={number / size:.6g} {unit}"


def _suiting(units: Prefixes, value: float) -> tuple[str, float]:
    """Return the largest unit of which the value has one."""
    return next(((unit, size) for unit, size in reversed(units) if value >= size * (1 - 1e-9)), units[0])


def _units_of(key: str) -> Prefixes | None:
    last = key.rpartition(".")[2]
    return next((units for end, units in _UNITS.items() if last.endswith(end)), None)


def _name(key: str) -> str:
    """Return the name of a key in words: `latency` for `cluster.latency_s`."""
    key = key.removesuffix(".name")
    group, _, node = key.rpartition(".")
    if group == "cluster.slow_nodes":
        return f"gradient time of node {node}, times the others'"
    return _NAMES.get(key) or (_bare(key.rpartition(".")[2]).replace("_", " ") if _units_of(key) else key)


def _bare(name: str) -> str:
    """Return a name without the unit that it ends in."""
    return name.removesuffix("_s").removesuffix("_bytes")


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan
