"""Know the units of configuration keys, and read numbers that carry a unit, like 10ms, 46.8MB or 1Gbit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

# of a key's name: its unit
BY_SUFFIX = {"_s": "s", "_bytes": "bytes", "bandwidth": "bit/s", "samples": "samples", "batch_size": "samples"}
COUNTED = "samples"  # a unit that numbers are shown with, and never written with
AS_THEY_ARE = ("model.arguments", "data.arguments")  # arguments of a user's function, whose units are its own

_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_BYTES = {"bytes": Decimal(1)} | {f"{prefix}B": Decimal(factor) for prefix, factor in (_PREFIXES | _BINARY).items()}
_SECONDS = {"ns": "1e-9", "us": "1e-6", "µs": "1e-6", "ms": "1e-3", "s": "1", "min": "60", "h": "3600", "d": "86400"}
_BITS = ("bit", "bit/s", "bps", "b/s")
# what one of each written unit is in the unit of the key; decimal, so that 5us is 5e-06 to the last bit
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
    """Return the unit of a dotted key: `s`, `bytes`, `bit/s` or COUNTED; None for a key without one. A number at its
    end is one node's."""
    names = [name for name in key.split(".") if not name.isdecimal()]
    return next((unit for suffix, unit in BY_SUFFIX.items() if names and names[-1].endswith(suffix)), None)


def number_in(text: str, unit: str) -> float | None:
    """Return the number of this unit that a text like `10ms` means; None if it is not a number with a unit behind it.

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

    value: of the dotted key, with everything below it. Raises ValueError, one line that names the key."""
    return value if key in AS_THEY_ARE else _plain(value, key, unit_of(key))


def _plain(value: Any, key: str, unit: str | None) -> Any:
    """unit: of the key, which a mapping by node and a list hand on."""
    if isinstance(value, Mapping):
        return {name: _below(inner, key, str(name), unit) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, f"{key}[{index}]", unit) for index, inner in enumerate(value)]
    if unit in (None, COUNTED) or not isinstance(value, str):
        return value
    try:
        number = number_in(value, unit)
    except ValueError as error:
        raise ValueError(f"{key} {error}") from error
    return value if number is None else number


def _below(value: Any, key: str, name: str, unit: str | None) -> Any:
    below = f"{key}.{name}"
    return value if below in AS_THEY_ARE else _plain(value, below, unit if name.isdecimal() else unit_of(name))
