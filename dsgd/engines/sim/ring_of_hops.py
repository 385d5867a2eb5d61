"""The ring of an all-reduce over links that differ: its time, and the order of its regions.

The ring passes all nodes of a region before the next region. For up to MOST_REGIONS regions it takes the fastest order.
In each of R = 2 (p - 1) rounds every node forwards a part of s_n bytes in slices of s. So an order takes at least

    R max(max_i s_n / B_i, sum_i (a_i + s / B_i) / p)

with the latency a_i and the rate B_i of the link from node i to the next. The MOST_TIMED orders with the smallest
bounds, all orders of up to five regions, are compared by their times."""

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
    """The link from one node of a ring to the next: its latency, the rate of the sender's port, and the lowest rate of
    ports and pipes on the route."""

    latency_s: float
    port_bytes_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, eq=False)
class RingOfHops:
    """A ring over the nodes of regions.

    regions: ranks of each region. hop: link from a rank to another. slice_bytes: maximum size of a forwarded slice.
    chunk_bytes: bytes of a node in one loop."""

    regions: Sequence[Sequence[int]]
    hop: Callable[[int, int], Hop]
    slice_bytes: float | None = None
    chunk_bytes: float | None = None
    _fastest: dict[float, tuple[float, list[int]]] = field(default_factory=dict, init=False)  # by bytes

    def seconds(self, n_bytes: float) -> float:
        """Return the time of an all-reduce of n_bytes."""
        return self._order_of(n_bytes)[0]

    def order(self, n_bytes: float) -> list[int]:
        """Return the ranks in the order of the ring for n_bytes."""
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
        """Return orders of the regions: the configuration's order first, then the orders with the smallest bounds."""
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
        """Return the seconds of a part on a hop's slowest pipe, and the seconds until its first slice has arrived."""
        hop = self.hop(here, there)
        return slices * size / hop.bytes_per_s, hop.latency_s + size / hop.bytes_per_s


def ring_of_hops_s(hops: Sequence[Sequence[Hop]], size: float, slices: int, rounds: int) -> np.ndarray:
    """Return the time of each of several rings over equally many hops, slice after slice of `size` bytes.

    The k-th slice of a round leaves node i when its port is free and the k-th slice of the round before has arrived:
    b_i = max(b_i' + s / P_i, e_(i-1) + a_(i-1)), and leaves the hop's slowest pipe at
    e_i = max(b_i, e_i') + s / B_i, with ' for the slice before."""
    latency_s, port, slowest = (
        np.array([[getattr(hop, name) for hop in ring] for ring in hops])
        for name in ("latency_s", "port_bytes_per_s", "bytes_per_s")
    )
    port_s, slowest_s = size / port, size / slowest
    there = np.zeros((slices, *port.shape))  # arrival of the slices of the round before from the left
    free, end = np.zeros(port.shape), np.zeros(port.shape)
    for _ in range(rounds):
        for k in range(slices):
            begin = np.maximum(free, there[k])
            free = begin + port_s
            end = np.maximum(begin, end) + slowest_s
            there[k] = np.roll(end + latency_s, 1, axis=-1)
    return there[-1].max(axis=-1)


def slice_count(n_bytes: float, slice_bytes: float | None) -> int:
    """Return the number of equal slices in which `n_bytes` are forwarded."""
    return 1 if slice_bytes is None else max(1, ceil(n_bytes / slice_bytes))
