"""Nodes that fail in lock-step, and the cost of failures: time down, and lost computations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dsgd.cluster.failures import Outage
from dsgd.experiment import Experiment
from dsgd.streams import stream

DownSpan = tuple[int, float, float]  # a node, and from when until when


@dataclass
class Downtime:
    """Collect the times in which workers and servers were down, until they had their parameters again, and in which
    workers computed steps that were lost later. Spans may lie in the future.

    lost_updates: updates of servers since the checkpoints that they returned with."""

    down: list[DownSpan] = field(default_factory=list)
    lost: list[DownSpan] = field(default_factory=list)
    servers: list[DownSpan] = field(default_factory=list)
    lost_updates: int = 0

    def summary(self, time_s: float, nodes: int, together: bool) -> dict[str, Any]:
        """Return the number of failures until a time, the time of lost computations, and the goodput.

        together: no worker makes progress while another one is down or computes a step that is lost later. No worker
        makes progress while a server is down."""
        down = [(node, begin, min(end, time_s)) for node, begin, end in self.down if begin < time_s]
        lost = [(node, begin, end) for node, begin, end in self.lost if end <= time_s]
        servers = [(begin, min(end, time_s)) for _, begin, end in self.servers if begin < time_s]
        by_node: dict[int, list[tuple[float, float]]] = {}
        for node, begin, end in down + lost:
            by_node.setdefault(0 if together else node, []).append((begin, end))
        idle_s = sum(_covered(spans + servers) for spans in by_node.values())
        if not together:
            idle_s = (idle_s + (nodes - len(by_node)) * _covered(servers)) / nodes
        return {
            "failures": len(down) + len(servers),
            "lost_work_s": sum((end - begin for _, begin, end in lost), 0.0),
            "goodput": 1 - idle_s / time_s if time_s > 0 else 1.0,
        }


@dataclass(eq=False)
class LockstepFailures:
    """Let one node fail while others wait for its steps. It loses its pending gradient, and computes it again after it
    has been repaired and has its parameters, which a peer keeps. So failures change only times."""

    _node: int
    _outages: Iterator[Outage]
    _downtime: Downtime

    def __post_init__(self) -> None:
        self._next()

    def _next(self) -> None:
        self._down_s, self._up_s = next(self._outages)
        self._downtime.down.append((self._node, self._down_s, self._up_s))

    def finish(self, start_s: float, finish: Callable[[float, float], float]) -> float:
        """Return the end of a gradient that should begin at `start_s`.

        finish: maps (begin, next failure) to the end of an undisturbed gradient; an end after the failure counts as
        disturbed."""
        while True:
            while self._up_s <= start_s:
                self._next()
            if self._down_s > start_s:
                end_s = finish(start_s, self._down_s)
                if end_s <= self._down_s:
                    return end_s
                self._downtime.lost.append((self._node, start_s, self._down_s))
            start_s = self._up_s


def outages_of(experiment: Experiment, port: int, restored_bytes: float | None = None) -> Iterator[Outage]:
    """Return the outages of a worker or a server, by its port.

    restored_bytes: size of the message that ends an outage; None: an outage ends with the repair."""
    cluster = experiment.cluster
    assert cluster.failing is not None
    restore_s = 0.0
    if restored_bytes is not None:
        restore_s = cluster.latency_s + restored_bytes / cluster.receive_bytes_per_s(port, experiment.nodes)
    return cluster.failing.outages_of(port, stream("failures", experiment.seed, port), restore_s)


def next_outage(outages: Iterator[Outage], now_s: float) -> Outage:
    """Return the next outage that ends after this time; without one, an outage that begins at infinity."""
    down_s, up_s = next(outages)
    while up_s <= now_s:
        down_s, up_s = next(outages)
    return max(down_s, now_s), up_s


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the total time covered by these spans."""
    covered, until = 0.0, 0.0
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered
