"""Other conditions of a described cluster: another bandwidth, no straggler, communication that computing hides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import fmean, median
from typing import Any

from dsgd.cli.need import first_enough, grid
from dsgd.cluster import Cluster
from dsgd.engines.sim.node import Processor, replay
from dsgd.experiment import Experiment
from dsgd.replay.night import time_of_night

FACTORS = (1.0, 1e6)  # between which a bandwidth is searched, times the cluster's
ROUNDING = 1 - 1e-9  # of a time that is as short as another one
# conditions without which messages take no time; a received vector still costs compute time
UNLIMITED: dict[str, Any] = {
    "bandwidth": math.inf,
    "latency_s": 0.0,
    "collective": "best",
    **dict.fromkeys(("collective_startup_s", "bucket_startup_s", "loss"), 0.0),
    **dict.fromkeys(("receive_bandwidth", "window_bytes", "initial_window_bytes", "connection_bandwidth", "links")),
    **dict.fromkeys(("server_bandwidth", "node_bandwidth", "wan_bandwidth", "wan_latency_s", "nccl")),
    **dict.fromkeys(("slice_bytes", "chunk_bytes")),
    "collective_messages": False,
    "islands": 1,
    "congestion": [],
}
# conditions without which gradients take no time
INSTANT: dict[str, Any] = {
    "gradient_s": 0.0,
    "stalls": [],
    "failures": None,
    "jitter_skew": None,
    **dict.fromkeys(("compute_trace", "slow_nodes")),
    **dict.fromkeys(("jitter", "jitter_persistent", "jitter_memory_s"), 0.0),
}


@dataclass(frozen=True)
class WhatIf:
    """Another condition, and the time of all steps by each method under it, in seconds."""

    condition: str
    times_s: tuple[float, ...]


def whatifs(experiments: Sequence[Experiment], steps: int) -> list[WhatIf]:
    """Return other conditions of the cluster that all experiments have in common, and their times in all steps.

    With perfect overlap, steps take as long as computing alone or as communicating alone, the longer of them."""

    def times_s(of_each: Sequence[Experiment]) -> list[float]:
        return [time_of_night(experiment, steps) for experiment in of_each]

    def with_cluster(cluster: Cluster) -> list[Experiment]:
        return [replace(experiment, cluster=cluster) for experiment in experiments]

    cluster = experiments[0].cluster
    rank, slowness = slowest_rank(experiments[0])
    alone = [times_s(with_cluster(replace(cluster, **changes))) for changes in (UNLIMITED, INSTANT)]
    typical = with_slowness(cluster, rank, 1 / slowness)
    straggler = f"rank {rank}, {slowness:.3g} times as slow," if slowness > 1 / ROUNDING else "slowest rank, none,"
    return [
        WhatIf(f"{straggler} at the median", (*times_s(with_cluster(typical)),)),
        WhatIf("perfect overlap of communication", tuple(map(max, *alone))),
        WhatIf(f"twice the {bandwidth_name(cluster)}", (*times_s(with_cluster(with_bandwidth(cluster, 2.0))),)),
    ]


def bandwidth_factors(experiment: Experiment, steps: int, times_s: Sequence[float]) -> list[float | None]:
    """Return for each of some times the smallest factor on the cluster's bandwidth with which all steps take so long,
    or None if no bandwidth is enough. The factors are a sixteenth of an octave apart."""
    fastest_s = min(times_s)

    def share_of(factor: float) -> float:
        cluster = with_bandwidth(experiment.cluster, factor)
        return fastest_s / time_of_night(replace(experiment, cluster=cluster), steps)

    return first_enough(share_of, [100 * ROUNDING * fastest_s / time_s for time_s in times_s], grid(*FACTORS))


def bandwidth_name(cluster: Cluster) -> str:
    """Return the name of the bandwidth that `with_bandwidth` changes."""
    return "bandwidth between islands" if cluster.islands > 1 or cluster.links is not None else "bandwidth"


def with_bandwidth(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with another bandwidth between its islands, or without islands of its nodes."""
    if cluster.links is not None:
        rows = [[None if rate is None else factor * rate for rate in row] for row in cluster.links["bandwidth"]]
        uplink = None if cluster.wan_bandwidth is None else factor * cluster.wan_bandwidth
        return replace(cluster, links={**cluster.links, "bandwidth": rows}, wan_bandwidth=uplink)
    if cluster.islands > 1:
        return replace(cluster, wan_bandwidth=factor * (cluster.wan_bandwidth or cluster.bandwidth))
    names = ("bandwidth", "receive_bandwidth", "server_bandwidth", "connection_bandwidth")
    rates = {name: factor * rate for name in names if (rate := getattr(cluster, name)) is not None}
    of_nodes = cluster.node_bandwidth
    if of_nodes is not None:
        of_nodes = {node: factor * rate for node, rate in of_nodes.items()}
    return replace(cluster, **rates, node_bandwidth=of_nodes)


def slowest_rank(experiment: Experiment) -> tuple[int, float]:
    """Return the worker with the longest mean gradient time, and this time over the median of all workers."""
    means_s = [_mean_gradient_s(experiment, rank) for rank in range(experiment.nodes)]
    rank, typical_s = means_s.index(max(means_s)), median(means_s)
    return rank, means_s[rank] / typical_s if typical_s else 1.0


def with_slowness(cluster: Cluster, rank: int, factor: float) -> Cluster:
    """Return the cluster with one worker's gradient times multiplied by a factor."""
    slow: Mapping[int, float] = cluster.slow_nodes or {}
    return replace(cluster, slow_nodes={**slow, rank: factor * slow.get(rank, 1.0)})


def _mean_gradient_s(experiment: Experiment, rank: int) -> float:
    """Return the mean of a worker's gradient times, without pauses."""
    cluster, nodes, seed = experiment.cluster, experiment.nodes, experiment.seed
    if cluster.replayed is None:
        return Processor(cluster, rank, seed, nodes).mean_s
    slowness = (cluster.slow_nodes or {}).get(rank, 1.0)
    times_s = replay(cluster.replayed, rank, nodes, seed, slowness)
    return fmean(islice(times_s, len(cluster.replayed.seconds[0])))
