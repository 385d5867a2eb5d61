"""The messages of an all-reduce: each node's sends and receives, step by step. They share the nodes' ports.

Values do not matter here, only the bytes between nodes, and the order of messages that depend on each other. Nodes are
the workers 0 to p - 1, and p for the centre of a star.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from dsgd.engines.sim.collectives import power_of_two
from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.network import Network
from dsgd.engines.sim.ring_of_hops import slice_count


@dataclass(frozen=True, slots=True)
class Step:
    """A node sends n_bytes to each of `targets` at once, then waits for one message of each of `sources`."""

    targets: Sequence[int]
    n_bytes: float
    sources: Sequence[int]


Steps = Callable[[int, float], Iterator[Step]]  # (node, bytes) to steps


def ring(
    p: int,
    node: int,
    n_bytes: float,
    item_bytes: int,
    slice_bytes: float | None = None,
    chunk_bytes: float | None = None,
) -> Iterator[Step]:
    """Yield the steps of a ring, with the segments of the real one: whole numbers of items, whether p divides them or
    not. What is left of n_bytes goes with the last segment. With slices a segment goes in equal ones. With chunks the
    ring goes round in loops, with an equal part of each segment."""
    items = int(n_bytes // item_bytes)
    loops = slice_count(n_bytes / p, chunk_bytes)
    slices = slice_count(n_bytes / (p * loops), slice_bytes)

    def rounds() -> Iterator[Round]:
        for j in [*range(2 * (p - 1))] * loops:
            segment = (node - j) % p
            size = (items * (segment + 1) // p - items * segment // p) * item_bytes
            remainder = n_bytes - items * item_bytes if segment == p - 1 else 0
            yield (node + 1) % p, (node - 1) % p, (size + remainder) / (loops * slices), slices

    return _handed_on(rounds())


def in_order(steps: Steps, order: Callable[[float], Sequence[int]]) -> Steps:
    """Return the steps of nodes in another order: the k-th node of the order makes the steps of node k.

    order: function of the bytes of the vector."""

    def steps_of(node: int, n_bytes: float) -> Iterator[Step]:
        nodes = order(n_bytes)
        for step in steps(nodes.index(node), n_bytes):
            yield Step([nodes[k] for k in step.targets], step.n_bytes, [nodes[k] for k in step.sources])

    return steps_of


def halving_doubling(p: int, node: int, n_bytes: float, _: int, slice_bytes: float | None = None) -> Iterator[Step]:
    """Yield the steps of recursive halving, then doubling; steps among the nodes of the power of two are in slices."""
    q = power_of_two(p)
    halving = [q >> level for level in range(1, q.bit_length())]

    def rounds() -> Iterator[Round]:
        for distance in (*halving, *reversed(halving)):
            size = n_bytes * distance / q
            slices = slice_count(size, slice_bytes)
            yield node ^ distance, node ^ distance, size / slices, slices

    return _with_surplus(p, node, n_bytes, _handed_on(rounds()))


def tree(p: int, node: int, n_bytes: float, _: int) -> Iterator[Step]:
    """Yield the steps of a binomial tree: from the children, to the parent and back, to the children."""
    subtree = node & -node or 1 << (p - 1).bit_length()  # nodes below this one, it included, if all are there
    children = [node + (1 << level) for level in range(subtree.bit_length() - 1) if node + (1 << level) < p]
    for child in children:
        yield Step([], 0, [child])
    if node:
        yield _swap(node & node - 1, n_bytes)
    for child in reversed(children):
        yield Step([child], n_bytes, [])


def chain(p: int, node: int, n_bytes: float, _: int, slice_bytes: float | None = None) -> Iterator[Step]:
    """Yield the steps of a chain: slices from the last node to the first, each node adding its own, and back."""
    slices = slice_count(n_bytes, slice_bytes)
    above, below = ([node + 1] if node + 1 < p else []), ([node - 1] if node else [])
    for sources, targets in ((above, below), (below, above)):
        for _slice in range(slices):
            if sources:
                yield Step([], 0, sources)
            if targets:
                yield Step(targets, n_bytes / slices, [])


def star(p: int, node: int, n_bytes: float, _: int) -> Iterator[Step]:
    """Yield the steps of a synchronous parameter server, node p."""
    if node < p:
        yield _swap(p, n_bytes)
    else:
        yield Step([], 0, range(p))
        yield Step(range(p), n_bytes, [])


def hierarchical(p: int, node: int, n_bytes: float, _: int, islands: int = 1) -> Iterator[Step]:
    """Yield the steps of rings within islands, then between islands, then within islands again."""
    m = p // islands
    first, position = node - node % m, node % m
    inside = [Step([first + (position + 1) % m], n_bytes / m, [first + (position - 1) % m])] * (m - 1)
    yield from inside
    for _round in range(2 * (islands - 1)):
        yield Step([(node + m) % p], n_bytes / p, [(node - m) % p])
    yield from inside


Round = tuple[int, int, float, int]  # target, source, bytes of a slice, number of slices


def _handed_on(rounds: Iterator[Round]) -> Iterator[Step]:
    """Yield the steps of rounds that forward the slices of the round before: the k-th slice waits only for the k-th
    slice of that round. So with several slices, one is sent while others are in flight."""
    sent: tuple[list[int], float] | None = None  # of the latest send, which ends with the waits of the next one
    source, due, waits = -1, 0, []
    for target, following, size, slices in rounds:
        for _slice in range(slices):
            if due:
                waits.append(source)
                due -= 1
            if sent is not None:
                yield Step(*sent, waits)
            sent, waits = ([target], size), []
        waits += [source] * due
        source, due = following, slices
    if sent is not None:
        yield Step(*sent, waits + [source] * due)


STEPS: dict[str, Callable[..., Iterator[Step]]] = {
    "ring": ring,
    "halving_doubling": halving_doubling,
    "tree": tree,
    "chain": chain,
    "star": star,
    "store": star,
    "hierarchical": hierarchical,
}

SLICED = ("ring", "halving_doubling", "chain")  # collectives with slices


def _swap(other: int, n_bytes: float) -> Step:
    return Step([other], n_bytes, [other])


def _with_surplus(p: int, node: int, n_bytes: float, core: Iterator[Step]) -> Iterator[Step]:
    """Yield the steps of a collective among q = `power_of_two(p)` nodes. Each surplus node sends its vector to a
    partner before, and receives the sum after."""
    q = power_of_two(p)
    if node >= q:
        yield _swap(node - q, n_bytes)
        return
    partner = [node + q] if node + q < p else []
    if partner:
        yield Step([], 0, partner)
    yield from core
    if partner:
        yield Step(partner, n_bytes, [])


@dataclass(eq=False)
class Collective:
    """One collective in progress."""

    n_bytes: float
    startup_s: float  # between a worker's turn and its first message
    missing: int  # number of nodes that have not finished
    ready: set[int]  # the nodes that can begin
    done: Callable[[], None] | None  # called when all nodes have finished
    arrived: Counter[tuple[int, int]] = field(default_factory=Counter)  # by (receiver, sender), minus received


@dataclass(eq=False)
class CollectiveMessages:
    """Take all nodes through one collective after the other, each at its own pace: a node that is through with one
    begins the next, while others may still be busy with the one before."""

    _loop: EventLoop
    _network: Network
    _ports: Sequence[int]  # of every node
    _workers: int  # number of workers; nodes behind them are always ready
    _steps: Steps
    _added: int = 0
    _open: dict[int, Collective] = field(default_factory=dict)  # by number

    def __post_init__(self) -> None:
        self._ways = [self._way(node) for node in range(len(self._ports))]

    def add(self, n_bytes: float, startup_s: float, done: Callable[[], None] | None) -> Collective:
        """Add a collective behind the others. done: called when all nodes are through."""
        nodes = len(self._ports)
        ready = set(range(self._workers, nodes))
        collective = self._open[self._added] = Collective(n_bytes, startup_s, nodes, ready, done)
        self._added += 1
        return collective

    def ready(self, collective: Collective, node: int) -> None:
        """Let a node begin, as soon as it has finished the collective before."""
        collective.ready.add(node)
        next(self._ways[node])

    def _arrived(self, collective: Collective, receiver: int, sender: int) -> None:
        collective.arrived[receiver, sender] += 1
        next(self._ways[receiver])

    def _way(self, node: int) -> Iterator[None]:
        """Run the node's steps of all collectives, and yield at each wait."""
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
