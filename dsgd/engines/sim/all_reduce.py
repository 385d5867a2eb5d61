"""All-reduces of vectors, gradients, and the first gradients of a step: by formula, or by messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from dsgd.cluster import CENTRAL, Cluster
from dsgd.engines.rules.task import Task
from dsgd.engines.sim.collective_steps import (
    SLICED,
    STEPS,
    Collective,
    CollectiveMessages,
    Step,
    hierarchical,
    in_order,
)
from dsgd.engines.sim.collectives import Links, all_reduce_s, bytes_of_nodes, bytes_of_uplink, links_of
from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.network import Network
from dsgd.engines.sim.node import Node, PendingAllReduce
from dsgd.gradients.evaluators import PendingGradient
from dsgd.worker import MeanOfFirst

FORWARD = 1 / 3  # of a gradient's time is the forward pass; communication can hide behind the other two thirds


class AllReduces:
    """Let p workers enter all-reduces, all in the same order, and end them in that order. Workers may leave, and join
    again, where these are not made of messages.

    taken: the collective of the latest one, `none` before the first."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: int,
        message_bytes: float,
        item_bytes: int,
        loop: EventLoop,
        network: Network,
        centre: int,
        reduced: Callable[[PendingAllReduce], None],
    ) -> None:
        """item_bytes: bytes of one number of a vector. centre: port of a star's centre. reduced: called at the end of
        an all-reduce."""
        self.taken = "none"
        self._collective = cluster.collective
        self._nodes = nodes
        self._members = nodes  # number of expected workers
        self._ports = [*range(nodes), centre]
        self._message_bytes = message_bytes
        self._cluster = cluster
        self._startup_s, self._bucket_startup_s = cluster.collective_startup_s, cluster.bucket_startup_s
        self._loop = loop
        self._network = network
        self._reduced = reduced
        self._free_s = 0.0
        self._pending: dict[int, PendingAllReduce] = {}  # by number
        self._parts: dict[int, list[Collective]] = {}  # likewise, by messages
        self._messages: CollectiveMessages | None = None
        if cluster.collective_messages and nodes > 1:
            steps = STEPS[cluster.collective]
            if cluster.collective == "hierarchical":
                steps = partial(hierarchical, islands=self._links.islands)
            elif cluster.collective in SLICED:
                chunks = {"chunk_bytes": cluster.chunk_bytes} if cluster.collective == "ring" else {}
                steps = partial(steps, slice_bytes=cluster.slice_bytes, **chunks)
            ports = self._ports if cluster.collective in CENTRAL else self._ports[:nodes]

            def of_node(node: int, n_bytes: float) -> Iterator[Step]:
                return steps(nodes, node, n_bytes, item_bytes)

            ring = self._links.ring if cluster.collective == "ring" and cluster.links is not None else None
            of_nodes = of_node if ring is None else in_order(of_node, ring.order)
            self._messages = CollectiveMessages(loop, network, ports, nodes, of_nodes)

    @cached_property
    def _links(self) -> Links:
        return links_of(self._cluster, self._nodes)

    def enter(
        self,
        task: Task[Any],
        contribution: Tensor | PendingGradient | None,
        begin_s: float,
        end_s: float,
        parts: int = 1,
        size: float = 1.0,
    ) -> None:
        """Enter the worker's next all-reduce, with a vector that is computed between these times, in equal parts. Each
        part is ready when its share of the backward pass is over. It is reduced when it is ready in all workers and the
        parts before it are reduced. All workers leave when the last one has the whole vector. size: share of x's
        size."""
        node, number, n_bytes = task.owner, task.owner.collectives, self._message_bytes * size
        node.collectives += 1
        pending = self._pending.get(number)
        if pending is None:
            pending = self._pending[number] = PendingAllReduce(self._nodes, self._members, n_bytes, parts)
            if self._messages is not None:
                self.taken = self._collective
                ends = [None] * (parts - 1) + [partial(self._end, pending)]
                startups = [self._startup_s + self._bucket_startup_s] + [self._bucket_startup_s] * (parts - 1)
                self._parts[number] = [
                    self._messages.add(n_bytes / parts, startup_s, end)
                    for startup_s, end in zip(startups, ends, strict=True)
                ]
        last = pending.enter(task, node.worker, contribution, _ready_s(begin_s, end_s, 1 / parts), end_s)
        if self._messages is not None:
            for k, part in enumerate(self._parts[number], start=1):
                ready_s = _ready_s(begin_s, end_s, k / parts)
                self._loop.at(ready_s, self._messages.ready, part, node.worker.rank)
        elif last:
            self._loop.at(self._run(pending, pending.begin_s, pending.end_s), self._end, pending)

    def leave(self, rank: int) -> None:
        """Stop expecting a worker. An all-reduce that waited only for it begins now."""
        self._members -= 1
        waiting = [(number, pending) for number, pending in self._pending.items() if pending.missing]
        for number, pending in waiting:
            pending.withdraw(rank)
            if not any(pending.tasks):
                del self._pending[number]
            elif not pending.missing:
                now_s = self._loop.now
                self._loop.at(self._run(pending, now_s, now_s), self._end, pending)

    def join(self, number: int) -> None:
        """Expect one more worker, from the all-reduce with this number on."""
        self._members += 1
        for each, pending in self._pending.items():
            if each >= number:
                pending.missing += 1

    def _run(self, pending: PendingAllReduce, first_s: float, last_s: float) -> float:
        """Run an all-reduce whose first and last part are ready in all workers at these times. Returns its end.

        Only its first or its last part can delay it. Each worker's parts are ready at regular intervals, so the times
        when all workers' parts are ready, the maximum of p such sequences, lie on or below a line from first to
        last."""
        n_bytes, parts, nodes, ports = pending.n_bytes, pending.parts, self._members, self._ports
        links = self._links
        if nodes < self._nodes:
            ports = [*(rank for rank, task in enumerate(pending.tasks) if task is not None), self._ports[-1]]
            if self._cluster.links is not None:
                links = links_of(self._cluster, self._nodes, ports[:-1])
        part_s, self.taken = all_reduce_s(self._collective, nodes, n_bytes / parts, links)
        startup_s = 0.0
        if nodes > 1:
            startup_s, part_s = self._startup_s, part_s + self._bucket_startup_s
        begin_s = max(first_s, self._free_s)
        self._free_s = max(begin_s + startup_s + parts * part_s, last_s + part_s)
        sizes = bytes_of_nodes(self.taken, nodes, n_bytes)
        traced = self._network.spans is not None and nodes > 1
        spans = _part_spans(begin_s, startup_s, part_s, parts, first_s, last_s) if traced else []
        for port, size in zip(ports, sizes, strict=False):  # without a star there is no centre
            self._network.count(port, size, begin_s, self._free_s)
            self._network.occupy(port, spans)
        routes = self._network.routes
        if routes is not None and routes.regions > 1:
            size = bytes_of_uplink(self.taken, nodes, routes.regions, n_bytes)
            routes.count(ports[:nodes], size, begin_s, self._free_s)
        return self._free_s

    def _end(self, pending: PendingAllReduce) -> None:
        number = min(self._pending)  # they end in the order in which they began
        del self._pending[number]
        self._parts.pop(number, None)
        self._reduced(pending)


def _ready_s(begin_s: float, end_s: float, share: float) -> float:
    """Return when this share of the backward pass of a gradient between two times is over."""
    return begin_s + (FORWARD + (1 - FORWARD) * share) * (end_s - begin_s)


def _part_spans(
    begin_s: float, startup_s: float, part_s: float, parts: int, first_s: float, last_s: float
) -> list[tuple[float, float]]:
    """Return when the parts of an all-reduce are communicated, one after the other, each when all workers have it."""
    end_s = begin_s + startup_s + part_s
    spans = [(begin_s, end_s)]
    for k in range(1, parts):
        ready_s = first_s + (last_s - first_s) * k / (parts - 1)
        if ready_s > end_s:
            spans.append((ready_s, ready_s))
        end_s = max(ready_s, end_s) + part_s
        spans[-1] = (spans[-1][0], end_s)
    return spans


@dataclass(eq=False)
class Quorum:
    """Let all workers make one step after the other, each with the first complete gradients."""

    _loop: EventLoop
    _all_reduces: AllReduces
    # (node, point): returns the gradient and its end
    _begin: Callable[[Node, Tensor], tuple[PendingGradient, float]]
    _finish: Callable[[Node, PendingGradient], Tensor | None]  # returns its value, None if the run ends
    _number: int = 0  # the present step
    _waiting: dict[int, tuple[Task[Any], MeanOfFirst]] = field(default_factory=dict)  # for the step's mean, by rank
    _first: dict[int, Tensor] = field(default_factory=dict)  # gradients of the step, by rank
    _computing: set[int] = field(default_factory=set)

    def enter(self, task: Task[Any], request: MeanOfFirst) -> None:
        """Let a worker take part in the present step, unless it is busy with a gradient of an earlier one."""
        rank = task.owner.worker.rank
        self._waiting[rank] = (task, request)
        if rank not in self._computing:
            self._compute(task.owner, request.at)

    def _compute(self, node: Node, at: Tensor) -> None:
        self._computing.add(node.worker.rank)
        gradient, end_s = self._begin(node, at)
        self._loop.at(end_s, self._computed, node, gradient, self._number)

    def _computed(self, node: Node, gradient: PendingGradient, number: int) -> None:
        rank = node.worker.rank
        self._computing.remove(rank)
        if rank not in self._waiting:  # the step is complete, and its mean in flight
            return
        _, request = self._waiting[rank]
        if number < self._number:
            self._compute(node, request.at)
            return
        value = self._finish(node, gradient)
        if value is None:
            return
        self._first[rank] = value
        if len(self._first) == request.count:
            self._close()

    def _close(self) -> None:
        """End the step: all workers take part in the all-reduce of its gradients, late workers with zeros."""
        waiting, first = self._waiting, self._first
        self._number += 1
        self._waiting, self._first = {}, {}
        for rank, (task, _) in sorted(waiting.items()):  # all of them: every worker has had the mean of the step before
            self._all_reduces.enter(task, first.get(rank), self._loop.now, self._loop.now)
