"""Write quantities as people read them: keys in words, numbers in the units that suit them, like `bandwidth=1 Gbit/s`.

Which key has which unit is in `dsgd.report.units`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dsgd.report.units import FACTORS, unit_of

EXACT_DIGITS = 6  # where a value is told from others, or read off an axis
# a unit of dsgd.report.units: the names that a person reads, ascending
_SHOWN: dict[str, tuple[str, ...]] = {
    "s": ("ns", "µs", "ms", "s"),
    "bytes": ("bytes", "kB", "MB", "GB", "TB"),
    "bit/s": ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"),
    "samples": ("samples",),
}
_NAMES = {
    "algo": "algorithm",
    "batch_size": "batch size per node",
    "cluster.failures.every_s": "mean time between failures of a node",
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
        return value if math.isnan(number) or not self.unit else _rounded(number / self.size, EXACT_DIGITS)


def quantity(key: str, values: Iterable[str]) -> Quantity:
    """Return a key for an axis with these values, in the unit that suits the middle of them."""
    name, unit = _name(key), unit_of(key)
    numbers = sorted(number for value in values if (number := _number(value)) > 0 and math.isfinite(number))
    if unit is None or not numbers:
        return Quantity(name)
    return Quantity(name, *_suiting(unit, math.sqrt(numbers[0] * numbers[-1])))


def assigned(short: str, key: str, value: str) -> str:
    """Return what a legend says of a key, `bandwidth=100 Mbit/s`. short: what the legend calls the key."""
    unit, number = unit_of(key), _number(value)
    if unit is None or not math.isfinite(number):
        return f"{short}={value}"
    return f"{_bare(short)}={in_units(number, unit, EXACT_DIGITS)}"


def bandwidth(bits_per_s: float) -> str:
    """Return `1 Gbit/s`; `unlimited bandwidth` for infinity."""
    return "unlimited bandwidth" if math.isinf(bits_per_s) else in_units(bits_per_s, "bit/s")


def size(count: float) -> str:
    """Return a number of bytes as `46.8 MB`."""
    return in_units(count, "bytes")


def duration(seconds: float) -> str:
    """Return a time as `10 ms`."""
    return in_units(seconds, "s")


def share(fraction: float) -> str:
    """Return a fraction as `10 %`."""
    return f"{_rounded(100 * fraction)} %"


def in_units(value: float, unit: str, digits: int = 3) -> str:
    """Return a number as `46.8 MB`. unit: of `dsgd.report.units`, in which the number is."""
    name, factor = _suiting(unit, value)
    return f"{_rounded(value / factor, digits)} {name}"


def _suiting(unit: str, value: float) -> tuple[str, float]:
    """Return the largest of a unit's names of which the value has one, with its size; of 0 and infinity the unit."""
    sizes = [(name, float(FACTORS[unit][name])) for name in _SHOWN[unit]]
    number = abs(value) if value and math.isfinite(value) else 1.0
    return next(((name, factor) for name, factor in reversed(sizes) if number >= factor * (1 - 1e-9)), sizes[0])


def _rounded(value: float, digits: int = 3) -> str:
    """Return so many significant digits, and no fewer than the whole number."""
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def _name(key: str) -> str:
    """Return the name of a key in words: `latency` for `cluster.latency_s`."""
    key = key.removesuffix(".name")
    group, _, last = key.rpartition(".")
    if group == "cluster.slow_nodes":
        return f"gradient time of node {last}, times the others'"
    if last.isdecimal():
        return f"{_name(group)} of node {last}"
    return _NAMES.get(key) or (_bare(last).replace("_", " ") if unit_of(key) else key)


def _bare(name: str) -> str:
    """Return a name without the unit that it ends in."""
    return name.removesuffix("_s").removesuffix("_bytes")


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan
