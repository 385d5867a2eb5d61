"""Nodes that fail in lock-step, and what failures cost a run: time down, and computing that was lost."""

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
    workers computed what they then lost. Spans may lie in the future.

    lost_updates: of servers, those since the checkpoints that they came back with."""

    down: list[DownSpan] = field(default_factory=list)
    lost: list[DownSpan] = field(default_factory=list)
    servers: list[DownSpan] = field(default_factory=list)
    lost_updates: int = 0

    def summary(self, time_s: float, nodes: int, together: bool) -> dict[str, Any]:
        """Return how often nodes have failed until a time, how long they computed what was lost, and the goodput.

        together: no worker makes progress while another one is down, or computes what it then loses. None does while a
        server is down."""
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
    """Let one node fail whose steps others wait for. It loses the gradient under way, and computes it again when it has
    been repaired and has its parameters, which a peer keeps. So failures change times, and nothing else."""

    _node: int
    _outages: Iterator[Outage]
    _downtime: Downtime

    def __post_init__(self) -> None:
        self._next()

    def _next(self) -> None:
        self._down_s, self._up_s = next(self._outages)
        self._downtime.down.append((self._node, self._down_s, self._up_s))

    def finish(self, start_s: float, finish: Callable[[float, float], float]) -> float:
        """Return when a gradient is done that is to begin at a time.

        finish: when it would be, begun at a time, if it does not come to another one."""
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

    restored_bytes: of a message that ends them; None: what comes after the repair is left to the caller."""
    cluster = experiment.cluster
    assert cluster.failing is not None
    restore_s = 0.0
    if restored_bytes is not None:
        restore_s = cluster.latency_s + restored_bytes / cluster.receive_bytes_per_s(port, experiment.nodes)
    return cluster.failing.outages_of(port, stream("failures", experiment.seed, port), restore_s)


def next_outage(outages: Iterator[Outage], now_s: float) -> Outage:
    """Return the next outage that ends after this time; one that never comes begins at infinity."""
    down_s, up_s = next(outages)
    while up_s <= now_s:
        down_s, up_s = next(outages)
    return max(down_s, now_s), up_s


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return how much time lies in any of these spans."""
    covered, until = 0.0, 0.0
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered
