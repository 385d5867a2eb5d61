"""Cost model of all-reduce: p nodes, N bytes, latency a seconds, B bytes/s in each direction of a node's port."""

from __future__ import annotations

from math import ceil, log2


def ring_s(p: int, n_bytes: float, latency_s: float, bytes_per_s: float) -> float:
    """Time of reduce-scatter and all-gather around a ring: 2 (p - 1) (a + N / (p B)). Patarasuk and Yuan 2009."""
    return 2 * (p - 1) * (latency_s + n_bytes / (p * bytes_per_s))


def halving_doubling_s(p: int, n_bytes: float, latency_s: float, bytes_per_s: float) -> float:
    """Time of recursive halving and doubling: 2 L a + 2 (p - 1) / p N / B with L = ceil(log2 p). Thakur et al. 2005
    (there by Rabenseifner); the extra cost of a p that is no power of two is left out."""
    return 2 * ceil(log2(p)) * latency_s + 2 * (p - 1) / p * n_bytes / bytes_per_s


def tree_s(p: int, n_bytes: float, latency_s: float, bytes_per_s: float) -> float:
    """Time of reduce and broadcast along a binomial tree: 2 L (a + N / B)."""
    return 2 * ceil(log2(p)) * (latency_s + n_bytes / bytes_per_s)


COSTS = {"ring": ring_s, "halving_doubling": halving_doubling_s, "tree": tree_s}


def all_reduce_s(collective: str, p: int, n_bytes: float, latency_s: float, bytes_per_s: float) -> tuple[float, str]:
    """Return the seconds after the last node enters, and the collective: the one asked for, or the fastest for `best`
    (the first of equals). One node needs none."""
    if p == 1:
        return 0.0, "none"
    names = COSTS if collective == "best" else (collective,)
    return min(((COSTS[name](p, n_bytes, latency_s, bytes_per_s), name) for name in names), key=lambda cost: cost[0])


def bytes_of_node(name: str, p: int, rank: int, n_bytes: float) -> float:
    """Return the bytes that node `rank` sends: 2 (p - 1) / p N, or in a tree N up and N to each of its children."""
    if name == "none":
        return 0.0
    if name != "tree":
        return 2 * (p - 1) / p * n_bytes
    levels = ceil(log2(p)) if rank == 0 else (rank & -rank).bit_length() - 1
    children = sum(rank + (1 << level) < p for level in range(levels))
    return (children + (rank != 0)) * n_bytes
