"""Cost model of all-reduce: p nodes, N bytes, latency a seconds, B bytes/s in each direction of a node's port.

With k islands of m = p / k nodes, a_w and B_w are the latency between islands and the rate of an island's uplink, which
its nodes share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import groupby
from math import ceil, inf, log2

from dsgd.cluster import BEST_OF, CENTRAL, Cluster
from dsgd.cluster.nccl import Nccl
from dsgd.engines.sim.nccl_time import nccl_s
from dsgd.engines.sim.nccl_tuner import Hosts
from dsgd.engines.sim.ring_of_hops import Hop, RingOfHops, slice_count


@dataclass(frozen=True)
class Links:
    """The links of an all-reduce: latency a and rate B of the slowest message between workers; rate of a star's centre,
    of its messages and its port in both directions; number of islands, and latency and rate between them.

    ring: ring whose hops differ beyond islands. slice_bytes: maximum size of a forwarded slice. chunk_bytes: bytes of a
    node in one loop of a ring. candidates: collectives from which `best` chooses. nccl: settings of NCCL, which then
    chooses instead."""

    latency_s: float
    bytes_per_s: float
    centre_bytes_per_s: float
    islands: int = 1
    wan_latency_s: float = 0.0
    wan_bytes_per_s: float = inf
    centre_sends_bytes_per_s: float = inf
    to_centre_bytes_per_s: float = inf
    from_centre_bytes_per_s: float = inf
    ring: RingOfHops | None = None
    slice_bytes: float | None = None
    chunk_bytes: float | None = None
    candidates: Sequence[str] = BEST_OF
    nccl: Nccl | None = None


def power_of_two(p: int) -> int:
    """Return the largest power of two that is at most p: the nodes that halve and double; the others are surplus."""
    return 1 << (p.bit_length() - 1)


def ring_s(p: int, n_bytes: float, links: Links) -> float:
    """Return the time of reduce-scatter and all-gather around a ring: 2 (p - 1) (a + N / (p B)). Patarasuk and Yuan
    2009.

    With n slices of s = N / (n p B), each round begins when the first slice of the round before has arrived and the
    port is free: (2 (p - 1) - 1) max(n s, a + s) + n s + a. So latency counts only beyond the other slices of a part.
    With chunks the vector takes several loops around the ring, each of 2 (p - 1) rounds with smaller parts."""
    if links.ring is not None:
        return links.ring.seconds(n_bytes)
    if links.islands > 1:
        return _ring_of_islands_s(p, n_bytes, links)
    loops = slice_count(n_bytes / p, links.chunk_bytes)
    part_bytes, rounds = n_bytes / (p * loops), 2 * (p - 1) * loops
    part_s, slices = part_bytes / links.bytes_per_s, slice_count(part_bytes, links.slice_bytes)
    if slices > 1:
        return (rounds - 1) * max(part_s, links.latency_s + part_s / slices) + part_s + links.latency_s
    return rounds * (links.latency_s + part_s)


def _ring_of_islands_s(p: int, n_bytes: float, links: Links) -> float:
    """Return the time of the same ring if every m-th message of a part goes to the next island.

    A message takes s = a + N / (p B) within an island, and a_w + u between islands with u = N / (p min(B, B_w)). Either
    an uplink is never idle, and R = 2 (p - 1) messages pass it one after the other. Or a part is always in flight, in R
    messages. C = 1 + (R - 1) div m of them go to another island, and (R - 1) mod m precede the first of these:

        max(a_w + R u, C (a_w + u) + (C - 1) (m - 1) s + ((R - 1) mod m) max(s, u))"""
    m, rounds = p // links.islands, 2 * (p - 1)
    inside_s = links.latency_s + n_bytes / (p * links.bytes_per_s)
    uplink_s = n_bytes / (p * min(links.bytes_per_s, links.wan_bytes_per_s))
    more, before = divmod(rounds - 1, m)
    way_s = (more + 1) * (links.wan_latency_s + uplink_s) + more * (m - 1) * inside_s + before * max(inside_s, uplink_s)
    return max(links.wan_latency_s + rounds * uplink_s, way_s)


def hierarchical_s(p: int, n_bytes: float, links: Links) -> float:
    """Return the time of reduce-scatter around a ring in each island, then rings between the islands, one for each m-th
    of the vector, then all-gather in each island. Two levels of Cho et al. 2019 (BlueConnect); without islands, a ring.

    Within the islands: 2 (m - 1) (a + N / (m B)). Between them: R = 2 (k - 1) rounds, with m messages through each
    uplink. A message takes u = N / (p B_w) in an uplink and N / (p B) in a node's port; e is the maximum of both.
    Either the messages are always in flight, or the uplink is never idle: max(R (a_w + e) + max(0, m u - e), R m u +
    a_w). This is exact for B_w <= B; with faster uplinks, messages may take a few percent more."""
    k, m = links.islands, p // links.islands
    inside_s = 2 * (m - 1) * (links.latency_s + n_bytes / (m * links.bytes_per_s))
    if k == 1:
        return inside_s
    rounds, uplink_s = 2 * (k - 1), n_bytes / (p * links.wan_bytes_per_s)
    message_s = max(uplink_s, n_bytes / (p * links.bytes_per_s))
    way_s = rounds * (links.wan_latency_s + message_s) + max(0.0, m * uplink_s - message_s)
    return inside_s + max(way_s, links.wan_latency_s + rounds * m * uplink_s)


def halving_doubling_s(p: int, n_bytes: float, links: Links) -> float:
    """Return the time of recursive halving and doubling: 2 log2(q) a + 2 (q - 1) / q N / B with q = `power_of_two(p)`,
    and 2 (a + N / B) for surplus nodes. Thakur et al. 2005 (there by Rabenseifner).

    With slices, n of s each in a round, the next round begins max(n s, a + s) later, the last one takes n s + a."""
    q = power_of_two(p)
    if links.slice_bytes is not None and q > 1:
        return _sliced_halving_s(q, n_bytes, links) + 2 * _surplus_s(p, n_bytes, links)
    halving_s = log2(q) * links.latency_s + (q - 1) / q * n_bytes / links.bytes_per_s
    return 2 * (halving_s + _surplus_s(p, n_bytes, links))


def _sliced_halving_s(q: int, n_bytes: float, links: Links) -> float:
    sizes = [n_bytes / 2**level for level in range(1, q.bit_length())]
    total_s = 0.0
    for size in [*sizes, *reversed(sizes)][:-1]:
        part_s = size / links.bytes_per_s
        total_s += max(part_s, links.latency_s + part_s / slice_count(size, links.slice_bytes))
    return total_s + sizes[0] / links.bytes_per_s + links.latency_s


def tree_s(p: int, n_bytes: float, links: Links) -> float:
    """Return the time of reduce and broadcast along a binomial tree: 2 L (a + N / B) with L = ceil(log2 p)."""
    return 2 * ceil(log2(p)) * (links.latency_s + n_bytes / links.bytes_per_s)


def chain_s(p: int, n_bytes: float, links: Links) -> float:
    """Return the time of reduce along a chain of nodes, then broadcast back: 2 (p - 1) (a + N / B); with n slices of s
    seconds 2 ((p - 1) (a + s) + (n - 1) s)."""
    slices = slice_count(n_bytes, links.slice_bytes)
    slice_s = n_bytes / slices / links.bytes_per_s
    return 2 * ((p - 1) * (links.latency_s + slice_s) + (slices - 1) * slice_s)


def star_s(p: int, n_bytes: float, links: Links) -> float:
    """Return the time of a synchronous parameter server on its own node: 2 a + 2 p N / B, all vectors through one port,
    in and out; 2 a + 2 N / B if the workers' ports are slower than that."""
    gathered = max(p / links.centre_bytes_per_s, 1 / links.to_centre_bytes_per_s)
    scattered = max(p / links.centre_sends_bytes_per_s, 1 / links.from_centre_bytes_per_s)
    return 2 * links.latency_s + n_bytes * (gathered + scattered)


def _surplus_s(p: int, n_bytes: float, links: Links) -> float:
    """Return the time in which each surplus node sends its vector to a partner, or receives the sum: a + N / B."""
    return links.latency_s + n_bytes / links.bytes_per_s if p > power_of_two(p) else 0.0


COSTS = {
    "ring": ring_s,
    "halving_doubling": halving_doubling_s,
    "tree": tree_s,
    "chain": chain_s,
    "star": star_s,
    "store": star_s,  # a centre without limits
    "hierarchical": hierarchical_s,
}


def all_reduce_s(collective: str, p: int, n_bytes: float, links: Links) -> tuple[float, str]:
    """Return the seconds after the last node enters, and the collective: the requested one, or the fastest for `best`
    (the first of equals). One node needs no time."""
    if p == 1:
        return 0.0, "none"
    if links.nccl is not None:
        k, network = links.islands, (links.wan_bytes_per_s, links.wan_latency_s)
        return nccl_s(n_bytes, Hosts(k, p // k, links.bytes_per_s, *network, links.nccl))
    names = links.candidates if collective == "best" else (collective,)
    return min(((COSTS[name](p, n_bytes, links), name) for name in names), key=lambda cost: cost[0])


@lru_cache(maxsize=8)
def bytes_of_nodes(name: str, p: int, n_bytes: float) -> tuple[float, ...]:
    """Return the bytes that each node sends in one all-reduce. It receives the same number: for each part sent, it
    receives a part of the same size. The last node is the centre of a star or store."""
    return tuple(bytes_of_node(name, p, node, n_bytes) for node in range(p + (name in CENTRAL)))


def bytes_of_node(name: str, p: int, node: int, n_bytes: float) -> float:
    """Return the bytes that a node sends, and receives, in one all-reduce; node p is the centre of a star or store."""
    if name == "none":
        return 0.0
    if name in ("ring", "hierarchical") or name.startswith("nccl"):  # of NCCL's trees the mean, as there are several
        return 2 * (p - 1) / p * n_bytes
    if name in CENTRAL:
        return (p if node == p else 1) * n_bytes
    if name == "chain":
        return (1 if node in (0, p - 1) else 2) * n_bytes
    if name == "tree":  # up, and down to each child
        levels = ceil(log2(p)) if node == 0 else (node & -node).bit_length() - 1
        children = sum(node + (1 << level) < p for level in range(levels))
        return (children + (node != 0)) * n_bytes
    q = power_of_two(p)
    if node >= q:  # surplus
        return n_bytes
    return (2 * (q - 1) / q + (node + q < p)) * n_bytes


def bytes_of_uplink(name: str, p: int, islands: int, n_bytes: float) -> float:
    """Return the bytes that leave each island in one all-reduce, and enter it."""
    of_islands = dict.fromkeys(("hierarchical", "nccl_tree", "nccl_nvls_tree"), islands)
    around = ({"none": 1, "ring": p, "nccl_ring": p} | of_islands)[name]  # number of nodes or islands in the ring
    return 2 * (around - 1) / around * n_bytes


def links_of(cluster: Cluster, nodes: int, members: Sequence[int] | None = None) -> Links:
    """Return the parameters of the formulas of all-reduces among `nodes` workers. members: ranks of a ring over
    regions; None: all ranks."""
    rates = [cluster.bytes_per_s(node, nodes) for node in range(nodes + 1)]
    receiving = [cluster.receive_bytes_per_s(node, nodes) for node in range(nodes + 1)]
    sends, receives = min(rates[:nodes]), min(receiving[:nodes])
    to_centre = _carried(cluster, cluster.latency_s, min(sends, receiving[nodes]))
    from_centre = _carried(cluster, cluster.latency_s, min(rates[nodes], receives))
    islands = {}
    if cluster.islands > 1:
        uplink = cluster.uplink_bytes_per_s
        assert uplink is not None
        islands = {"wan_latency_s": cluster.latency_between_islands_s, "wan_bytes_per_s": uplink}
    matrix, ring = cluster.link_matrix, None
    if matrix is not None or (cluster.islands > 1 and (cluster.limits_connections or cluster.cuts_parts)):
        of_region = (lambda _: 0) if matrix is None else partial(cluster.region, nodes=nodes)  # islands are all alike
        regions = [list(ranks) for _, ranks in groupby(members or range(nodes), of_region)]
        hop = cache(partial(_hop, cluster, nodes, rates, receiving))
        ring = RingOfHops(regions, hop, cluster.slice_bytes, cluster.chunk_bytes)
    return Links(
        cluster.latency_s,
        _carried(cluster, cluster.latency_s, min(sends, receives)),
        receiving[nodes],
        cluster.islands if matrix is None else len(matrix.regions),
        **islands,
        centre_sends_bytes_per_s=rates[nodes],
        to_centre_bytes_per_s=to_centre,
        from_centre_bytes_per_s=from_centre,
        ring=ring,
        slice_bytes=cluster.slice_bytes,
        chunk_bytes=cluster.chunk_bytes,
        candidates=[name for name in cluster.best_of if name in cluster.with_formula],
        nccl=cluster.of_nccl,
    )


def _hop(cluster: Cluster, nodes: int, rates: list[float], receiving: list[float], here: int, there: int) -> Hop:
    """Return the way from a node of a ring to the next."""
    latency_s, between = cluster.between(cluster.region(here, nodes), cluster.region(there, nodes))
    return Hop(latency_s, rates[here], _carried(cluster, latency_s, min(rates[here], receiving[there], between)))


def _carried(cluster: Cluster, latency_s: float, line_bytes_per_s: float) -> float:
    """Return the rate of a message between two nodes on a line."""
    return min(line_bytes_per_s, cluster.connection_bytes_per_s(latency_s, line_bytes_per_s))
