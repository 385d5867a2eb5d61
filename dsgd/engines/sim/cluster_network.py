"""The network of a configured cluster: for its messages, and for the formulas of its collectives."""

from __future__ import annotations

from math import inf

from dsgd.cluster import Cluster
from dsgd.cluster.disturbances import Congestion
from dsgd.engines.sim.collectives import Hop, Links
from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.network import LossyNetwork, Network
from dsgd.engines.sim.routes import RegionLink, Routes


def network_of(cluster: Cluster, loop: EventLoop, nodes: int, ports: int, seed: int) -> Network:
    """Make the network of `nodes` workers.

    ports: of workers, and after them of servers and of a star's centre. seed: of the run."""
    rates = [cluster.bytes_per_s(node, nodes) for node in range(ports)]
    receiving = None
    if cluster.receive_bandwidth is not None:
        receiving = [cluster.receive_bytes_per_s(node, nodes) for node in range(ports)]
    matrix, routes = cluster.link_matrix, None
    if cluster.islands > 1 or matrix is not None or cluster.limits_connections:
        routes = _routes(cluster, loop, nodes, rates, receiving or rates, seed)
    parts = (loop, rates, cluster.latency_s, cluster.chunks_per_message, routes, receiving)
    if not cluster.loss and not (matrix is not None and matrix.lossy):
        return Network(*parts)

    def loss(sender: int, receiver: int) -> float:
        here, there = cluster.region(sender, nodes), cluster.region(receiver, nodes)
        return cluster.loss if matrix is None or here == there else max(cluster.loss, matrix.loss[here][there])

    return LossyNetwork(*parts, loss=loss, retransmit_s=cluster.retransmit_s, seed=seed)


def _routes(
    cluster: Cluster, loop: EventLoop, nodes: int, rates: list[float], receiving: list[float], seed: int
) -> Routes:
    """Return what is between the ports. rates, receiving: of every port."""
    region_of = [cluster.region(node, nodes) for node in range(len(rates))]
    matrix, links = cluster.link_matrix, {}
    if matrix is not None:
        k = range(len(matrix.regions))
        links = {
            (i, j): RegionLink(matrix.latency_s[i][j], cluster.link_bytes_per_s(i, j), cluster.link_congestion(i, j))
            for i in k
            for j in k
            if i != j
        }

    def connection(sender: int, receiver: int, latency_s: float) -> float:
        line = min(rates[sender], receiving[receiver], _between(cluster, region_of[sender], region_of[receiver])[1])
        return cluster.connection_bytes_per_s(latency_s, line)

    congestion = [] if matrix is not None else [Congestion.from_entry(entry) for entry in cluster.congestion]
    return Routes(
        loop,
        region_of,
        cluster.uplink_bytes_per_s,
        cluster.latency_between_islands_s,
        congestion,
        seed,
        links,
        cluster.latency_s,
        connection if cluster.limits_connections else None,
    )


def links_of(cluster: Cluster, nodes: int) -> Links:
    """Return what the formulas of all-reduces among `nodes` workers go by."""
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
    matrix = cluster.link_matrix
    hops = None
    if matrix is not None or (cluster.islands > 1 and (cluster.limits_connections or cluster.slice_bytes)):
        hops = tuple(_hop(cluster, nodes, node, rates, receiving) for node in range(nodes))
    return Links(
        cluster.latency_s,
        _carried(cluster, cluster.latency_s, min(sends, receives)),
        receiving[nodes],
        cluster.islands if matrix is None else len(matrix.regions),
        **islands,
        centre_sends_bytes_per_s=rates[nodes],
        to_centre_bytes_per_s=to_centre,
        from_centre_bytes_per_s=from_centre,
        hops=hops,
        slice_bytes=cluster.slice_bytes,
        candidates=[name for name in cluster.best_of if name in cluster.with_formula],
    )


def _hop(cluster: Cluster, nodes: int, node: int, rates: list[float], receiving: list[float]) -> Hop:
    """Return the way from a node of a ring to the next."""
    after = (node + 1) % nodes
    latency_s, between = _between(cluster, cluster.region(node, nodes), cluster.region(after, nodes))
    return Hop(latency_s, rates[node], _carried(cluster, latency_s, min(rates[node], receiving[after], between)))


def _between(cluster: Cluster, here: int, there: int) -> tuple[float, float]:
    """Return the latency from one region to another, and the rate of the slowest uplink or link between them."""
    matrix = cluster.link_matrix
    if here == there:
        return cluster.latency_s, inf
    uplink = cluster.uplink_bytes_per_s or inf
    if matrix is None:
        return cluster.latency_between_islands_s, uplink
    return matrix.latency_s[here][there], min(uplink, cluster.link_bytes_per_s(here, there))


def _carried(cluster: Cluster, latency_s: float, line_bytes_per_s: float) -> float:
    """Return what a message between two nodes gets of a line."""
    return min(line_bytes_per_s, cluster.connection_bytes_per_s(latency_s, line_bytes_per_s))
