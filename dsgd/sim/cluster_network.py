"""The network of a configured cluster."""

from __future__ import annotations

from dsgd.cluster import Cluster, Congestion
from dsgd.sim.loop import EventLoop
from dsgd.sim.loss import LossyNetwork
from dsgd.sim.network import Network
from dsgd.sim.uplinks import Uplinks


def network_of(cluster: Cluster, loop: EventLoop, nodes: int, ports: int, seed: int) -> Network:
    """Make the network of `nodes` workers.

    ports: of workers, and after them of servers and of a star's centre. seed: of the run."""
    rates = [cluster.bytes_per_s(node, nodes) for node in range(ports)]
    uplinks = None
    if cluster.islands > 1:
        islands = [cluster.island(node, nodes) for node in range(ports)]
        rate, latency_s = cluster.uplink_bytes_per_s, cluster.latency_between_islands_s
        congestion = [Congestion.of(entry) for entry in cluster.congestion]
        uplinks = Uplinks(loop, islands, rate, latency_s, congestion, seed)
    parts = (loop, rates, cluster.latency_s, cluster.chunks_per_message, uplinks)
    return LossyNetwork(*parts, cluster.loss, cluster.retransmit_s, seed) if cluster.loss else Network(*parts)
