"""Cost model of all-reduce: p nodes, N bytes, latency a seconds, B bytes/s in each direction of a node's port."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2

from dsgd.cluster import BEST_OF


@dataclass(frozen=True)
class Links:
    """What an all-reduce goes over: latency a, and the rate B of the workers' slowest port and of the centre's."""

    latency_s: float
    bytes_per_s: float
    centre_bytes_per_s: float


def power_of_two(p: int) -> int:
    """Return the largest power of two that is at most p: so many nodes halve and double, the others are surplus."""
    return 1 << (p.bit_length() - 1)


def ring_s(p: int, n_bytes: float, links: Links) -> float:
    """Time of reduce-scatter and all-gather around a ring: 2 (p - 1) (a + N / (p B)). Patarasuk and Yuan 2009."""
    return 2 * (p - 1) * (links.latency_s + n_bytes / (p * links.bytes_per_s))


def halving_doubling_s(p: int, n_bytes: float, links: Links) -> float:
    """Time of recursive halving and doubling: 2 log2(q) a + 2 (q - 1) / q N / B with q = `power_of_two(p)`, and
    2 (a + N / B) for surplus nodes. Thakur et al. 2005 (there by Rabenseifner)."""
    q = power_of_two(p)
    halving_s = log2(q) * links.latency_s + (q - 1) / q * n_bytes / links.bytes_per_s
    return 2 * (halving_s + _surplus_s(p, n_bytes, links))


def recursive_doubling_s(p: int, n_bytes: float, links: Links) -> float:
    """Time of recursive doubling: log2(q) (a + N / B) with q = `power_of_two(p)`, and 2 (a + N / B) for surplus nodes.
    Thakur et al. 2005."""
    return log2(power_of_two(p)) * (links.latency_s + n_bytes / links.bytes_per_s) + 2 * _surplus_s(p, n_bytes, links)


def tree_s(p: int, n_bytes: float, links: Links) -> float:
    """Time of reduce and broadcast along a binomial tree: 2 L (a + N / B) with L = ceil(log2 p)."""
    return 2 * ceil(log2(p)) * (links.latency_s + n_bytes / links.bytes_per_s)


def star_s(p: int, n_bytes: float, links: Links) -> float:
    """Time of a synchronous parameter server on a node of its own: 2 a + 2 p N / B, all vectors through one port, in
    and out; 2 a + 2 N / B where the workers' ports are slower than that."""
    return 2 * (links.latency_s + n_bytes * max(p / links.centre_bytes_per_s, 1 / links.bytes_per_s))


def _surplus_s(p: int, n_bytes: float, links: Links) -> float:
    """Time in which each surplus node hands its vector to a partner before, or gets the sum after: a + N / B."""
    return links.latency_s + n_bytes / links.bytes_per_s if p > power_of_two(p) else 0.0


COSTS = {
    "ring": ring_s,
    "halving_doubling": halving_doubling_s,
    "recursive_doubling": recursive_doubling_s,
    "tree": tree_s,
    "star": star_s,
}


def all_reduce_s(collective: str, p: int, n_bytes: float, links: Links) -> tuple[float, str]:
    """Return the seconds after the last node enters, and the collective: the one asked for, or the fastest for `best`
    (the first of equals). One node needs none."""
    if p == 1:
        return 0.0, "none"
    names = BEST_OF if collective == "best" else (collective,)
    return min(((COSTS[name](p, n_bytes, links), name) for name in names), key=lambda cost: cost[0])


@lru_cache(maxsize=8)
def bytes_of_nodes(name: str, p: int, n_bytes: float) -> tuple[float, ...]:
    """Return the bytes that each node sends in one all-reduce, and receives: whoever sends somebody a part gets one of
    the same size from it, or from another one. The last one is a star's centre, if it is a star."""
    return tuple(bytes_of_node(name, p, node, n_bytes) for node in range(p + (name == "star")))


def bytes_of_node(name: str, p: int, node: int, n_bytes: float) -> float:
    """Return the bytes that a node sends, and receives, in one all-reduce; node p is the centre of a star."""
    if name == "none":
        return 0.0
    if name == "ring":
        return 2 * (p - 1) / p * n_bytes
    if name == "star":
        return (p if node == p else 1) * n_bytes
    if name == "tree":  # up, and down to each child
        levels = ceil(log2(p)) if node == 0 else (node & -node).bit_length() - 1
        children = sum(node + (1 << level) < p for level in range(levels))
        return (children + (node != 0)) * n_bytes
    q = power_of_two(p)
    if node >= q:  # surplus
        return n_bytes
    doubled = log2(q) if name == "recursive_doubling" else 2 * (q - 1) / q
    return (doubled + (node + q < p)) * n_bytes
