"""Describe what holds nodes and links up for a time: entries of `cluster.stalls` and `cluster.congestion`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_S = 1e9  # for one gradient, latency or stall: 30 years
LEAST_CONGESTION_S = 1e-3  # what is shorter no message notices


@dataclass(frozen=True)
class Stall:
    """A pause in which a node computes nothing.

    Either once, {node: 3, start_s: 10, duration_s: 5}, or again and again at random, {every_s: 100, duration_s: 5}:
    gaps and pauses then have exponential lengths with these means; with `node` only there, without it on every node on
    its own.
    """

    duration_s: float
    node: int | None = None
    start_s: float | None = None
    every_s: float | None = None

    @staticmethod
    def from_entry(entry: Mapping[str, Any]) -> Stall:
        """Make a stall from one entry of `cluster.stalls`. Raises ValueError."""
        unknown = set(entry) - {"node", "start_s", "duration_s", "every_s"}
        once, again = {"node", "start_s", "duration_s"}, {"every_s", "duration_s"}
        if unknown or not (set(entry) == once or set(entry) - {"node"} == again):
            raise ValueError(
                "stalls must be {node, start_s, duration_s} or {every_s, duration_s} with or without node, "
                f"got {dict(entry)}"
            )
        for name, value in entry.items():
            if isinstance(value, bool) or not isinstance(value, int if name == "node" else (int, float)):
                raise ValueError(f"stalls: {name} must be a number, got {value!r}")
            if not value >= 0 or (name in ("duration_s", "every_s") and value == 0):
                raise ValueError(f"stalls: {name} must be > 0, got {value}")
            for_good = name == "duration_s" and math.isinf(value)
            if value > LONGEST_S and not for_good:
                raise ValueError(f"stalls: {name} must be <= {LONGEST_S:g}, got {value}")
        return Stall(**entry)


@dataclass(frozen=True)
class Congestion:
    """A time in which uplinks, or links, have only a part of their bandwidth, as others use them, too.

    Either once, {start_s: 10, duration_s: 5, factor: 0.2}, for all at the same time, or again and again at random,
    {every_s: 100, duration_s: 5, factor: 0.2}: gaps and lengths then have exponential lengths with these means, each
    uplink or link and direction on its own. Where several meet, the smallest factor counts. With `between`, two regions
    of `cluster.links`, only the links between these.
    """

    duration_s: float
    factor: float
    start_s: float | None = None
    every_s: float | None = None
    between: tuple[str, str] | None = None

    @staticmethod
    def from_entry(entry: Mapping[str, Any]) -> Congestion:
        """Make a congestion from one entry of `cluster.congestion`. Raises ValueError."""
        numbers = {name: value for name, value in entry.items() if name != "between"}
        if set(numbers) not in ({"start_s", "duration_s", "factor"}, {"every_s", "duration_s", "factor"}):
            forms = "{start_s, duration_s, factor} or {every_s, duration_s, factor}"
            raise ValueError(f"congestion must be {forms}, got {dict(entry)}")
        pair = entry.get("between")
        if pair is not None and (isinstance(pair, str) or len(pair) != 2 or pair[0] == pair[1]):
            raise ValueError(f"congestion: between must be two regions, got {pair!r}")
        for name, value in numbers.items():
            least, most = {"factor": (1e-3, 1), "start_s": (0, LONGEST_S)}.get(name, (LEAST_CONGESTION_S, LONGEST_S))
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
                raise ValueError(f"congestion: {name} must be in [{least:g}, {most:g}], got {value!r}")
        return Congestion(**numbers, between=None if pair is None else (str(pair[0]), str(pair[1])))
