"""The ring of an all-reduce over nodes whose ways to each other differ: its time, and the order of its regions.

It passes the nodes of a region one after the other, then goes to the next region. Of the orders in which it can pass up
to MOST_REGIONS regions it takes the fastest. In each of R = 2 (p - 1) rounds every node hands on a part of s_n bytes in
slices of s. So an order takes at least

    R max(max_i s_n / B_i, sum_i (a_i + s / B_i) / p)

with the latency a_i and the rate B_i of the way from node i to the next. The MOST_TIMED orders of which this is least,
all of five regions, are compared by their times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import pairwise, permutations
from math import ceil

import numpy as np

MOST_REGIONS = 8
MOST_TIMED = 24
EQUAL = 1e-9  # relative difference of times below which the order of the configuration stays


@dataclass(frozen=True)
class Hop:
    """The way from one node of a ring to the next: its latency, the rate of the sender's port, and that of the slowest
    of all that a message passes, ports included."""

    latency_s: float
    port_bytes_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, eq=False)
class RingOfHops:
    """A ring over the nodes of regions.

    regions: the ranks of each. hop: the way from a rank to another. slice_bytes: in which parts are handed on.
    chunk_bytes: what each node has of a loop."""

    regions: Sequence[Sequence[int]]
    hop: Callable[[int, int], Hop]
    slice_bytes: float | None = None
    chunk_bytes: float | None = None
    _fastest: dict[float, tuple[float, list[int]]] = field(default_factory=dict)  # by bytes

    def seconds(self, n_bytes: float) -> float:
        """Return the time of an all-reduce of so many bytes."""
        return self._order_of(n_bytes)[0]

    def order(self, n_bytes: float) -> list[int]:
        """Return the ranks in the order in which such an all-reduce passes them."""
        return self._order_of(n_bytes)[1]

    def _order_of(self, n_bytes: float) -> tuple[float, list[int]]:
        if n_bytes in self._fastest:
            return self._fastest[n_bytes]
        p = sum(map(len, self.regions))
        loops = slice_count(n_bytes / p, self.chunk_bytes)
        slices = slice_count(n_bytes / (p * loops), self.slice_bytes)
        size = n_bytes / (p * loops * slices)
        orders = [
            [rank for region in order for rank in self.regions[region]] for order in self._candidates(size, slices)
        ]
        hops = [[self.hop(here, there) for here, there in pairwise([*order, order[0]])] for order in orders]
        times = ring_of_hops_s(hops, size, slices, 2 * (p - 1) * loops)
        best = int(np.where(times < times[0] * (1 - EQUAL), times, times[0]).argmin())
        return self._fastest.setdefault(n_bytes, (float(times[best]), orders[best]))

    def _candidates(self, size: float, slices: int) -> list[tuple[int, ...]]:
        """Return orders of the regions, first that of the configuration, then those with the least bounds."""
        k, p = len(self.regions), sum(map(len, self.regions))
        listed = tuple(range(k))
        if not 3 <= k <= MOST_REGIONS:
            return [listed]
        between = [[self._cost(here[-1], there[0], size, slices) for there in self.regions] for here in self.regions]
        inside = [self._cost(*pair, size, slices) for ranks in self.regions for pair in pairwise(ranks)]
        slowest_s, way_s = max((part_s for part_s, _ in inside), default=0.0), sum(hop_s for _, hop_s in inside)

        def bound(order: tuple[int, ...]) -> tuple[float, float]:
            passed = [between[here][there] for here, there in pairwise((*order, 0))]
            whole_s = way_s + sum(hop_s for _, hop_s in passed)
            return max(p * slowest_s, *(p * part_s for part_s, _ in passed), whole_s), whole_s

        others = ((0, *order) for order in permutations(listed[1:]))
        return [listed, *nsmallest(MOST_TIMED, others, key=bound)]

    def _cost(self, here: int, there: int, size: float, slices: int) -> tuple[float, float]:
        """Return the seconds that a part takes of a hop's slowest pipe, and those of its first slice."""
        hop = self.hop(here, there)
        return slices * size / hop.bytes_per_s, hop.latency_s + size / hop.bytes_per_s


def ring_of_hops_s(hops: Sequence[Sequence[Hop]], size: float, slices: int, rounds: int) -> np.ndarray:
    """Return the time of each of several rings over equally many hops, slice after slice of so many bytes.

    The k-th slice of a round leaves node i when its port is free and the k-th slice of the round before is there:
    b_i = max(b_i' + s / P_i, e_(i-1) + a_(i-1)), and the hop's slowest part is through with it at
    e_i = max(b_i, e_i') + s / B_i, with ' for the slice before."""
    latency_s, port, slowest = (
        np.array([[getattr(hop, name) for hop in ring] for ring in hops])
        for name in ("latency_s", "port_bytes_per_s", "bytes_per_s")
    )
    port_s, slowest_s = size / port, size / slowest
    there = np.zeros((slices, *port.shape))  # when the slices of the round before have come from the left
    free, end = np.zeros(port.shape), np.zeros(port.shape)
    for _ in range(rounds):
        for k in range(slices):
            begin = np.maximum(free, there[k])
            free = begin + port_s
            end = np.maximum(begin, end) + slowest_s
            there[k] = np.roll(end + latency_s, 1, axis=-1)
    return there[-1].max(axis=-1)


def slice_count(n_bytes: float, slice_bytes: float | None) -> int:
    """Return in how many equal slices so many bytes are handed on."""
    return 1 if slice_bytes is None else max(1, ceil(n_bytes / slice_bytes))
