"""All-reduces as messages, which share the nodes' ports with each other and with all other messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from dsgd.engines.sim.collective_steps import Step
from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.network import Network

Steps = Callable[[int, float], Iterator[Step]]  # of a node, for so many bytes


class Collective:
    """One collective under way. startup_s: between a worker's turn and its first message. ready: the nodes that can
    begin. arrived: messages by (receiver, sender), less those that were waited for. missing: how many nodes have not
    come to its end. done: called when all have."""

    def __init__(
        self, n_bytes: float, startup_s: float, missing: int, ready: set[int], done: Callable[[], None] | None
    ) -> None:
        self.n_bytes = n_bytes
        self.startup_s = startup_s
        self.missing = missing
        self.ready = ready
        self.done = done
        self.arrived: Counter[tuple[int, int]] = Counter()


class CollectiveMessages:
    """Take all nodes through one collective after the other, each at its own pace: a node that is through with one
    begins the next, while others may still be busy with the one before."""

    def __init__(self, loop: EventLoop, network: Network, ports: Sequence[int], workers: int, steps: Steps) -> None:
        """ports: of every node. workers: how many of them there are; nodes behind them are always ready."""
        self._loop = loop
        self._network = network
        self._ports = ports
        self._workers = workers
        self._steps = steps
        self._added = 0
        self._open: dict[int, Collective] = {}  # by number
        self._ways = [self._way(node) for node in range(len(ports))]

    def add(self, n_bytes: float, startup_s: float, done: Callable[[], None] | None) -> Collective:
        """Add a collective behind the others. done: called when all nodes are through."""
        nodes = len(self._ports)
        ready = set(range(self._workers, nodes))
        collective = self._open[self._added] = Collective(n_bytes, startup_s, nodes, ready, done)
        self._added += 1
        return collective

    def ready(self, collective: Collective, node: int) -> None:
        """Let a node begin, as soon as it is through with the collective before."""
        collective.ready.add(node)
        next(self._ways[node])

    def _arrived(self, collective: Collective, receiver: int, sender: int) -> None:
        collective.arrived[receiver, sender] += 1
        next(self._ways[receiver])

    def _way(self, node: int) -> Iterator[None]:
        """Go through all collectives, and yield where something is to be waited for."""
        for number in count():
            while (collective := self._open.get(number)) is None or node not in collective.ready:
                yield
            if collective.startup_s and node < self._workers:
                begin_s = self._loop.now + collective.startup_s
                self._loop.at(begin_s, next, self._ways[node])
                while self._loop.now < begin_s:
                    yield
            for step in self._steps(node, collective.n_bytes):
                messages = [
                    (self._ports[target], step.n_bytes, self._arrived, (collective, target, node))
                    for target in step.targets
                ]
                if messages:
                    self._network.send(self._ports[node], messages)
                for source in step.sources:
                    while not collective.arrived[node, source]:
                        yield
                    collective.arrived[node, source] -= 1
            collective.missing -= 1
            if not collective.missing:
                del self._open[number]
                if collective.done is not None:
                    collective.done()
