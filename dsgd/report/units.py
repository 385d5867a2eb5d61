"""Know the units of configuration keys, read numbers that carry a unit, like 10ms, 46.8MB or 1Gbit, and write them as
people read them: keys in the words of their declarations, numbers in the units that suit them, `bandwidth=1 Gbit/s`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dsgd.keys import Key
from dsgd.record.safe_text import plain_number
from dsgd.report.key_table import key_table

# of a key's name: its unit
BY_SUFFIX = {"_s": "s", "_bytes": "bytes", "bandwidth": "bit/s", "samples": "samples", "batch_size": "samples"}
COUNTED = "samples"  # a unit that numbers are shown with, and never written with
AS_THEY_ARE = ("model.arguments", "data.arguments")  # arguments of a user's function, whose units are its own

_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_BYTES = {"bytes": Decimal(1)} | {f"{prefix}B": Decimal(factor) for prefix, factor in (_PREFIXES | _BINARY).items()}
_SECONDS = {"ns": "1e-9", "us": "1e-6", "µs": "1e-6", "ms": "1e-3", "s": "1", "min": "60", "h": "3600", "d": "86400"}
_BITS = ("bit", "bit/s", "bps", "b/s")
# size of each written unit in the unit of the key; decimal, so that 5us is 5e-06 to the last bit
FACTORS: Mapping[str, Mapping[str, Decimal]] = {
    "s": {name: Decimal(factor) for name, factor in _SECONDS.items()},
    "bytes": _BYTES,
    "bit/s": {f"{prefix}{bit}": Decimal(factor) for prefix, factor in _PREFIXES.items() for bit in _BITS}
    | {f"{name}/s": 8 * factor for name, factor in _BYTES.items()},
    COUNTED: {COUNTED: Decimal(1)},
}
EXAMPLES = {"s": "10ms or 5min", "bytes": "46.8MB or 64KiB", "bit/s": "10Gbit/s or 1.25GB/s"}
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ][A-Za-zµ/]*)")


def unit_of(key: str) -> str | None:
    """Return the unit of a dotted key: `s`, `bytes`, `bit/s` or COUNTED; None for a key without one. A number at the
    end of a key is a node."""
    names = [name for name in key.split(".") if not name.isdecimal()]
    return next((unit for suffix, unit in BY_SUFFIX.items() if names and names[-1].endswith(suffix)), None)


def number_in(text: str, unit: str) -> float | None:
    """Return the number in this unit of a text like `10ms`; None if it is not a number with a unit.

    Raises ValueError for another unit."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    number, written = match.groups()
    if written not in FACTORS[unit]:
        raise ValueError(f"must be in {unit}, got {text}; like {EXAMPLES[unit]}")
    return float(Decimal(number) * FACTORS[unit][written])


def without_units(value: Any, key: str) -> Any:
    """Return a configuration in which every number with a unit is a plain number in the unit of its key.

    value: value of the dotted key, with everything below it. Raises ValueError, one line that names the key."""
    if key in AS_THEY_ARE:
        return value
    if isinstance(value, Mapping):
        return {name: without_units(inner, f"{key}.{name}") for name, inner in value.items()}
    if isinstance(value, list):
        return [without_units(inner, f"{key}[{index}]") for index, inner in enumerate(value)]
    unit = unit_of(re.sub(r"\[\d+\]", "", key))
    if unit in (None, COUNTED) or not isinstance(value, str):
        return value
    try:
        number = number_in(value, unit)
    except ValueError as error:
        raise ValueError(f"{key} {error}") from error
    return value if number is None else number


EXACT_DIGITS = 6  # for values in a legend or on an axis
# a unit of FACTORS: the names that a person reads, ascending
_SHOWN: dict[str, tuple[str, ...]] = {
    "s": ("ns", "µs", "ms", "s"),
    "bytes": ("bytes", "kB", "MB", "GB", "TB"),
    "bit/s": ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"),
    "samples": ("samples",),
}
_PLAIN_GROUPS = ("", "algo", "budget", "cluster", "optimizer", "target")  # whose keys need no word for the group


@dataclass(frozen=True)
class Quantity:
    """A key as the label of an axis. name: name in words. unit: empty for a plain number or a text. size: size of the
    unit."""

    name: str
    unit: str = ""
    size: float = 1.0

    @property
    def label(self) -> str:
        """Return `bandwidth (Gbit/s)`."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def text(self, value: str) -> str:
        """Return a value in the unit of the axis, without the unit: `0.1`; a text unchanged."""
        number = as_number(value)
        return value if math.isnan(number) else plain_number(float(_rounded(number / self.size, EXACT_DIGITS)))


def quantity(key: str, values: Iterable[str]) -> Quantity:
    """Return a key for an axis with these values, in the unit that suits the middle of them."""
    name, unit = _name(key), unit_of(key)
    if key_table().get(key, Key()).unit == "%":
        return Quantity(name, "%", 0.01)
    numbers = sorted(number for value in values if (number := as_number(value)) > 0 and math.isfinite(number))
    if unit is None or not numbers:
        return Quantity(name)
    return Quantity(name, *_suiting(unit, math.sqrt(numbers[0] * numbers[-1])))


def assigned(short: str, key: str, value: str) -> str:
    """Return a key and its value in a legend, `bandwidth=100 Mbit/s`. short: the key's name in the legend."""
    unit, number = unit_of(key), as_number(value)
    if unit is None or not math.isfinite(number):
        return f"{short}={value}"
    return f"{_bare(short)}={in_units(number, unit, EXACT_DIGITS)}"


def bandwidth(bits_per_s: float) -> str:
    """Return `1 Gbit/s`; `unlimited bandwidth` for infinity."""
    return "unlimited bandwidth" if math.isinf(bits_per_s) else in_units(bits_per_s, "bit/s")


def share(fraction: float) -> str:
    """Return a fraction as `10 %`."""
    return f"{_rounded(100 * fraction)} %"


def in_units(value: float, unit: str, digits: int = 3) -> str:
    """Return a number as `46.8 MB`. unit: the number's unit, one of FACTORS."""
    name, factor = _suiting(unit, value)
    return f"{_rounded(value / factor, digits)} {name}"


def duration(seconds: float) -> str:
    """Return a time as `9.4 h`, `12 min` or `3.2 s`."""
    name, size = next(((name, size) for name, size in (("h", 3600.0), ("min", 60.0)) if seconds >= size), ("", 1.0))
    return f"{_rounded(seconds / size)} {name}" if name else in_units(seconds, "s")


def _suiting(unit: str, value: float) -> tuple[str, float]:
    """Return the largest name of a unit that is at most the value, with its size; for 0 and infinity the unit."""
    sizes = [(name, float(FACTORS[unit][name])) for name in _SHOWN[unit]]
    number = abs(value) if value and math.isfinite(value) else 1.0
    return next(((name, factor) for name, factor in reversed(sizes) if number >= factor * (1 - 1e-9)), sizes[0])


def _rounded(value: float, digits: int = 3) -> str:
    """Return `digits` significant digits, and at least the whole number."""
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def _name(key: str) -> str:
    """Return the name of a key in words: `latency` for `cluster.latency_s`."""
    key = key.removesuffix(".name")
    group, _, last = key.rpartition(".")
    if last.isdecimal():
        declared = key_table().get(group, Key()).of_node
        return declared.format(last) if declared else f"{_name(group)} of node {last}"
    spelled = _bare(last).replace("_", " ")
    alone = unit_of(key) is not None or group in _PLAIN_GROUPS
    return key_table().get(key, Key()).axis or (spelled if alone else f"{group.replace('.', ' ')} {spelled}")


def _bare(name: str) -> str:
    """Return a name without the unit that it ends in."""
    return name.removesuffix("_s").removesuffix("_bytes")


def as_number(value: str) -> float:
    """Return the number that a text is; NaN for another text."""
    try:
        return float(value)
    except ValueError:
        return math.nan
