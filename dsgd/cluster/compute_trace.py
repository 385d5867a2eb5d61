"""Variation of the gradient times of a node: by a distribution (`cluster.jitter` and the keys that begin with it), or
as times measured on the ranks of a run (`cluster.compute_trace`). Also temporary delays of nodes and links
(`cluster.stalls`, `cluster.congestion`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import fmean
from typing import Any

from dsgd.host.files import text_lines

LONGEST_S = 1e9  # for one gradient, latency or stall: 30 years
LEAST_CONGESTION_S = 1e-3  # shorter congestion does not delay a message
KEY = "compute_trace"

LEAST_JITTER = 1e-3  # random numbers of 64 bits do not resolve less, or more than its inverse
DISTRIBUTIONS = ("gamma", "lognormal", "normal")
MOST_NORMAL_JITTER = 1 / 3  # zero is three deviations from the mean: the truncation hardly shows
MOST_SKEW = 1e3


@dataclass(frozen=True)
class Stall:
    """A pause in which a node computes nothing.

    Either once, {node: 3, start_s: 10, duration_s: 5}, or again and again at random, {every_s: 100, duration_s: 5}:
    gaps and pauses then have exponential lengths with these means, on `node`, or independently on every node."""

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
    """A time in which uplinks, or links, have only a part of their bandwidth, because others use them.

    Either once, {start_s: 10, duration_s: 5, factor: 0.2}, for all at the same time, or again and again at random,
    {every_s: 100, duration_s: 5, factor: 0.2}: gaps and lengths then have exponential lengths with these means,
    independently for each uplink or link and direction. If several overlap, the smallest factor counts. With `between`,
    two regions of `cluster.links`, only the links between these."""

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


@dataclass(frozen=True)
class JitterLaw:
    """The distribution of the factors, with mean 1, on a node's gradient times.

    cv: standard deviation of the factors of one node over their mean. distribution: one of DISTRIBUTIONS. skew: third
    standardised moment of a log-normal that is shifted and scaled to it; None: the distribution's own. persistent:
    standard deviation, over the mean, of one more factor that a node draws once and keeps, a log-normal. memory_s:
    seconds after which the correlation of a node's factors, on the scale of the normal that the log-normal is made of,
    has fallen to 1 / e; 0: they are independent."""

    cv: float
    distribution: str = "gamma"
    skew: float | None = None
    persistent: float = 0.0
    memory_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("jitter", self.cv), ("jitter_persistent", self.persistent)):
            if value != 0 and not LEAST_JITTER <= value <= 1 / LEAST_JITTER:
                raise ValueError(f"{name} must be 0 or in [{LEAST_JITTER:g}, {1 / LEAST_JITTER:g}], got {value}")
        if self.distribution not in DISTRIBUTIONS:
            known = ", ".join(DISTRIBUTIONS)
            raise ValueError(f"jitter_distribution must be one of {known}, got {self.distribution!r}")
        if self.distribution == "normal" and self.cv > MOST_NORMAL_JITTER:
            raise ValueError(f"jitter must be <= 1/3 with jitter_distribution=normal, got {self.cv}")
        if not 0 <= self.memory_s <= LONGEST_S:
            raise ValueError(f"jitter_memory_s must be in [0, {LONGEST_S:g}], got {self.memory_s}")
        for name, value, usual in (("skew", self.skew, "null"), ("memory_s", self.memory_s or None, "0")):
            if value is not None and (self.cv == 0 or self.distribution != "lognormal"):
                rule = f"jitter_{name} must be {usual} without jitter and jitter_distribution=lognormal"
                raise ValueError(f"{rule}, got {value:g}")
        least = self.cv**3 + 3 * self.cv
        if self.skew is not None and not least <= self.skew <= MOST_SKEW:  # with less, times below 0 would be drawn
            rule = f"jitter_skew must be in [{least:.4g}, {MOST_SKEW:g}] (jitter^3 + 3 jitter: a log-normal's own)"
            raise ValueError(f"{rule}, got {self.skew:g}")

    @cached_property
    def base_cv(self) -> float:
        """Return the standard deviation, over the mean, of the log-normal that is shifted and scaled: v with
        v^3 + 3 v = skew."""
        return self.cv if self.skew is None else 2 * math.sinh(math.asinh(self.skew / 2) / 3)


@dataclass(frozen=True)
class ComputeTrace:
    """Seconds of computing of every rank in every step: seconds[rank][step]. path: path of its file."""

    path: str
    seconds: tuple[tuple[float, ...], ...]

    @staticmethod
    def read(path: str) -> ComputeTrace:
        """Read a csv file `step,rank,seconds`, one line for each rank in each step, in any order. Step numbers may have
        gaps, ranks may not. Raises ValueError naming the line."""
        times: dict[tuple[int, int], float] = {}
        for where, (step, rank, seconds) in read_rows(path, KEY, ("step", "rank", "seconds")):
            position = whole(rank, "rank", KEY, where), whole(step, "step", KEY, where)
            if position in times:
                raise ValueError(f"{KEY} must have each rank once in a step, got {rank:g} in {step:g} again {where}")
            if not 0 < seconds <= LONGEST_S:
                raise ValueError(f"{KEY} must have seconds in (0, {LONGEST_S:g}], got {seconds:g} {where}")
            times[position] = seconds
        ranks, steps = 1 + max(rank for rank, _ in times), sorted({step for _, step in times})
        if len(times) < ranks * len(steps):
            missing = ((rank, step) for step in steps for rank in range(ranks) if (rank, step) not in times)
            rank, step = next(missing)
            raise ValueError(f"{KEY} must have every rank in every step, got no rank {rank} in step {step} ({path})")
        return ComputeTrace(path, tuple(tuple(times[rank, step] for step in steps) for rank in range(ranks)))

    @cached_property
    def mean_s(self) -> float:
        """Return the mean of all times."""
        return fmean(chain.from_iterable(self.seconds))

    @cached_property
    def longest_s(self) -> float:
        """Return the longest time."""
        return max(chain.from_iterable(self.seconds))

    def check(self, nodes: int) -> None:
        """Raise ValueError if the ranks are too few to show differences of `nodes` workers."""
        if len(self.seconds) < min(nodes, 2):
            rule = f"{KEY} must have at least 2 ranks (nodes={nodes}), as one tells nothing about the others"
            raise ValueError(f"{rule}, got {len(self.seconds)} ({self.path})")


def read_rows(path: str, key: str, columns: Sequence[str]) -> list[tuple[str, tuple[float, ...]]]:
    """Return the lines of a csv file with these columns: for each its place, for messages, and its numbers.

    key: key that names the file, for messages. Raises ValueError naming the file and the line."""
    lines = text_lines(path, key)
    header = lines[0][:40] if lines else ""
    if [name.strip() for name in header.split(",")] != list(columns):
        raise ValueError(f"{key} must begin with the line {','.join(columns)}, got {header!r} ({path})")
    rows: list[tuple[str, tuple[float, ...]]] = []
    for number, line in enumerate(lines[1:], start=2):
        where = f"({path}, line {number})"
        if not line.strip():
            continue
        try:
            numbers = tuple(map(float, line.split(",")))
        except ValueError:
            numbers = ()
        if len(numbers) != len(columns) or not all(map(math.isfinite, numbers)):
            raise ValueError(f"{key} must hold {len(columns)} numbers a line, got {line[:40]!r} {where}")
        rows.append((where, numbers))
    if not rows:
        raise ValueError(f"{key} must hold at least one line of numbers, got none ({path})")
    return rows


def whole(value: float, name: str, key: str, where: str) -> int:
    """Return a whole number >= 0 of a trace. Raises ValueError for another one."""
    if value < 0 or not value.is_integer():
        raise ValueError(f"{key} must have a whole {name} >= 0 on every line, got {value:g} {where}")
    return int(value)
