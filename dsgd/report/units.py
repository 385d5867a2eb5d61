"""Write quantities in the units that a person reads: `1 Gbit/s`, `0.1 ms`, `46.8 MB`."""

from __future__ import annotations

import math

_RATES = ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def bandwidth(bits_per_s: float) -> str:
    """Return `1 Gbit/s`; `unlimited bandwidth` for infinity."""
    return "unlimited bandwidth" if math.isinf(bits_per_s) else _scaled(bits_per_s, _RATES, "bit/s")


def size(count: float) -> str:
    """Return a number of bytes as `46.8 MB`."""
    return _scaled(count, _SIZES, "bytes")


def duration(seconds: float) -> str:
    """Return a time as `10 ms`."""
    if seconds == 0 or math.isinf(seconds):
        return f"{seconds:g} s"
    return _scaled(seconds, _TIMES, "s")


def share(fraction: float) -> str:
    """Return a fraction as `10 %`."""
    return f"{_digits(100 * fraction)} %"


def _scaled(value: float, units: tuple[tuple[float, str], ...], plain: str) -> str:
    for unit, name in units:
        if value >= unit:
            return f"{_digits(value / unit)} {name}"
    return f"{_digits(value)} {plain}"


def _digits(value: float) -> str:
    """Return three significant digits, and no fewer than the whole number."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
