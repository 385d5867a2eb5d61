"""Describe nodes that fail and return: `cluster.failures`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

from dsgd.cluster.compute_trace import LONGEST_S, read_rows, whole
from dsgd.keys import Key

if TYPE_CHECKING:
    import numpy as np

KEY, CHECKPOINT = "failures", "server_checkpoint_s"
Outage = tuple[float, float]  # from when until when a node is down


@dataclass(frozen=True)
class Failures:
    """The times of failures of nodes, and of their repairs.

    Either at random, {every_s: 2e7, repair_s: 5e5}: each node runs for an exponential time with mean every_s, and its
    repair takes an exponential time with mean repair_s; with repair_median_s a log-normal one of this mean and median.
    Or {trace: FILE}, a csv file `node,down_s,up_s` with a line for each outage.

    With server_checkpoint_s servers fail likewise, in a trace as nodes after the workers; a server on a worker's node
    fails with it. A server returns with the state of its latest checkpoint, taken every server_checkpoint_s seconds, or
    for 0 with a replica's state."""

    every_s: Annotated[float, Key(axis="mean time between failures of a node")] = inf
    repair_s: float = 0.0
    repair_median_s: float | None = None
    server_checkpoint_s: float | None = None  # None: servers do not fail
    outages: Mapping[int, tuple[Outage, ...]] = field(default_factory=dict)  # of a trace, in order of time

    @staticmethod
    def from_entry(entry: Mapping[str, Any]) -> Failures:
        """Make the failures from `cluster.failures`. Raises ValueError."""
        entry, checkpoint_s = dict(entry), entry.get(CHECKPOINT)
        if entry.pop(CHECKPOINT, None) is not None and not _is_time(checkpoint_s, zero=True):
            raise ValueError(f"{KEY}: {CHECKPOINT} must be >= 0 and <= {LONGEST_S:g}, got {_shown(checkpoint_s)}")
        if set(entry) == {"trace"} and isinstance(entry["trace"], str):
            return Failures(outages=_read(entry["trace"]), server_checkpoint_s=checkpoint_s)
        if not {"every_s", "repair_s"} <= set(entry) <= {"every_s", "repair_s", "repair_median_s"}:
            forms = "{every_s, repair_s} with or without repair_median_s, or {trace: FILE}"
            given = ", ".join(map(str, entry)) or "nothing"
            raise ValueError(f"{KEY} must be {forms}, both with or without {CHECKPOINT}, got {given}")
        for name, value in entry.items():
            if not _is_time(value):
                raise ValueError(f"{KEY}: {name} must be > 0 and <= {LONGEST_S:g}, got {_shown(value)}")
        failures = Failures(**entry, server_checkpoint_s=checkpoint_s)
        if failures.repair_median_s is not None and failures.repair_median_s > failures.repair_s:
            rule = f"{KEY}: repair_median_s must be <= repair_s ({failures.repair_s:g}), as log-normals have it"
            raise ValueError(f"{rule}, got {failures.repair_median_s:g}")
        return failures

    def check(self, nodes: int, servers: int) -> None:
        """Raise ValueError if a trace names a node that does not fail.

        servers: number of servers on their own nodes, numbered after the workers' nodes."""
        ports = nodes + (0 if self.server_checkpoint_s is None else servers)
        if self.outages and (last := max(self.outages)) >= ports:
            which = f"nodes={nodes}" + (f" and {ports - nodes} servers" if ports > nodes else "")
            raise ValueError(f"cluster.{KEY} must name nodes in 0..{ports - 1} ({which}), got {last} in its trace")

    def check_time(self, limit_s: float) -> None:
        """Raise ValueError if a repair takes longer than a run may."""
        longest = max((up_s - down_s for outages in self.outages.values() for down_s, up_s in outages), default=None)
        if longest is not None and longest > limit_s:
            rule = f"cluster.{KEY} must have no outage that is longer than budget.time_s ({limit_s:g})"
            raise ValueError(f"{rule}, got one of {longest:g} s in its trace")
        if self.repair_s > limit_s:
            raise ValueError(f"cluster.{KEY}: repair_s must be <= budget.time_s ({limit_s:g}), got {self.repair_s:g}")

    def outages_of(self, node: int, rng: np.random.Generator, restore_s: float = 0.0) -> Iterator[Outage]:
        """Yield the outages of a node in order of time, without end: outages after the last one begin at infinity.

        restore_s: seconds from a repair until the node has its parameters."""
        if not math.isinf(self.every_s):
            up_s = 0.0
            while True:
                down_s = up_s + rng.exponential(self.every_s)
                up_s = down_s + self._draw_repair(rng) + restore_s
                yield down_s, up_s
        for down_s, up_s in self.outages.get(node, ()):
            yield down_s, up_s + restore_s
        while True:
            yield inf, inf

    def _draw_repair(self, rng: np.random.Generator) -> float:
        if self.repair_median_s is None:
            return rng.exponential(self.repair_s)
        sigma = math.sqrt(2 * math.log(self.repair_s / self.repair_median_s))
        return rng.lognormal(math.log(self.repair_median_s), sigma)


def _read(path: str) -> dict[int, tuple[Outage, ...]]:
    """Read the outages of every node from a file. Raises ValueError naming the line."""
    outages: dict[int, list[tuple[float, float, str]]] = {}
    for where, (node, down_s, up_s) in read_rows(path, KEY, ("node", "down_s", "up_s")):
        if not 0 <= down_s < up_s <= LONGEST_S:
            rule = f"{KEY} must have 0 <= down_s < up_s <= {LONGEST_S:g} on every line"
            raise ValueError(f"{rule}, got {down_s:g} and {up_s:g} {where}")
        outages.setdefault(whole(node, "node", KEY, where), []).append((down_s, up_s, where))
    for node, spans in outages.items():
        spans.sort()
        for (_, up_s, _), (down_s, _, where) in pairwise(spans):
            if down_s < up_s:
                rule = f"{KEY} must have outages of a node one after the other"
                raise ValueError(f"{rule}, got node {node} down at {down_s:g} before it is up at {up_s:g} {where}")
    return {node: tuple((down_s, up_s) for down_s, up_s, _ in spans) for node, spans in outages.items()}


def _is_time(value: Any, zero: bool = False) -> bool:
    """Return whether a value is a number of seconds, above 0 unless zero is allowed."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 < value <= LONGEST_S or (zero and value == 0)


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**18 else "a very long number"
    return text if len(text) <= 40 else f"{text[:40]}..."
