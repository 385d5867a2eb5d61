"""All-reduces of the simulated workers, one after the other, in the time that the cost model gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dsgd.cluster import Cluster
from dsgd.engine.task import Task
from dsgd.gradients.pending import PendingGradient
from dsgd.sim.collectives import Links, all_reduce_s, bytes_of_nodes
from dsgd.sim.loop import EventLoop
from dsgd.sim.network import Network
from dsgd.sim.node import PendingAllReduce

FORWARD = 1 / 3  # of a gradient's time is the forward pass; communication can hide behind the other two thirds


class AllReduces:
    """Let p workers enter all-reduces, each of them in the same order, and end these in that order.

    taken: the collective of the latest one, `none` before the first."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: int,
        message_bytes: float,
        loop: EventLoop,
        network: Network,
        centre: int,
        reduced: Callable[[PendingAllReduce], None],
    ) -> None:
        """centre: the port of a star's centre. reduced: called when an all-reduce has ended."""
        self.taken = "none"
        self._collective = cluster.collective
        self._nodes = nodes
        self._ports = [*range(nodes), centre]
        self._message_bytes = message_bytes
        rates = [cluster.bytes_per_s(node, nodes) for node in range(nodes + 1)]
        self._links = Links(cluster.latency_s, min(rates[:nodes]), rates[nodes])
        self._loop = loop
        self._network = network
        self._reduced = reduced
        self._free_s = 0.0
        self._pending: dict[int, PendingAllReduce] = {}  # by number

    def enter(
        self, task: Task[Any], contribution: Tensor | PendingGradient, begin_s: float, end_s: float, parts: int = 1
    ) -> None:
        """Enter the worker's next all-reduce, with a vector that is computed between these times, and in equal parts:
        each is ready when its share of the backward pass is over, and is reduced as soon as everybody's is, after
        those before it."""
        node = task.owner
        pending = self._pending.get(node.collectives)
        if pending is None:
            pending = self._pending[node.collectives] = PendingAllReduce(self._nodes)
        node.collectives += 1
        first_s = begin_s + (FORWARD + (1 - FORWARD) / parts) * (end_s - begin_s)
        if pending.enter(task, node.worker, contribution, first_s, end_s):
            self._loop.at(self._run(pending.begin_s, pending.end_s, parts), self._end, pending)

    def _run(self, first_s: float, last_s: float, parts: int) -> float:
        """Run an all-reduce whose first and last part are ready everywhere at these times, and return when it is over.

        It is held up by its first or by its last part alone: those of one worker are ready at regular intervals, so
        the times at which everybody's are, the latest of p such sequences, lie on or below a line from first to
        last."""
        part_s, self.taken = all_reduce_s(self._collective, self._nodes, self._message_bytes / parts, self._links)
        begin_s = max(first_s, self._free_s)
        self._free_s = max(begin_s + parts * part_s, last_s + part_s)
        sizes = bytes_of_nodes(self.taken, self._nodes, self._message_bytes)
        for port, size in zip(self._ports, sizes, strict=False):  # without a star there is no centre
            self._network.count(port, size, begin_s, self._free_s)
        return self._free_s

    def _end(self, pending: PendingAllReduce) -> None:
        del self._pending[min(self._pending)]  # they end in the order in which they began
        self._reduced(pending)
