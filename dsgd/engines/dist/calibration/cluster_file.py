"""Write the measurements of a cluster as a file for the simulator, and compare it with the previous file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import yaml

from dsgd.cluster import Cluster
from dsgd.engines.dist.calibration.measure import Jitter, MeasuredLink

OUTLIER = 0.1  # a node that differs by more than this from the median gets its own entry
NOISY = 0.2  # standard deviation of the gradient times over their mean, from which a calibration is warned of
MOST_APART = 1.25  # a factor, between two calibrations of one cluster


def as_cluster_yaml(
    title: str,
    gradient_of: str,
    jitters: Sequence[Jitter],
    overheads_s: Sequence[float],
    links: Mapping[tuple[int, int], MeasuredLink],
    assumed: Cluster,
) -> str:
    """Write a cluster as a file for the configuration's folder `cluster`.

    title: one line on the measurement. gradient_of: model, batch size and precision, as in `Cluster`. jitters:
    [workers], by rank. overheads_s: [workers], seconds for each received vector. links: {(rank, rank): link}. assumed:
    cluster with the network of a single worker, which has no links. Raises ValueError for several workers without
    links, and for a rank without jitter."""
    ranks = range(len(jitters))
    if bool(links) != (len(jitters) > 1) or not all(rank in ranks for pair in links for rank in pair):
        raise ValueError(f"links must be between ranks in 0..{len(jitters) - 1} and at least one, got {sorted(links)}")
    gradient_s, slow_nodes = _typical({rank: jitter.mean_s for rank, jitter in enumerate(jitters)})
    cv = statistics.median(jitter.cv for jitter in jitters)
    kinds = [jitter.distribution for jitter in jitters]
    kind = max(kinds, key=kinds.count)
    samples, pauses = sum(jitter.samples for jitter in jitters), sum(jitter.pauses for jitter in jitters)
    network = _measured_network(overheads_s, links) if links else _assumed_network(assumed)
    entries = [
        ("gradient_s", _number(gradient_s), f"mean of {samples} gradients, median of {len(jitters)} workers"),
        *network,
        ("protocol_efficiency", "1.0", "bandwidth is measured as payload, beside headers"),
        ("servers_colocated", "true", "as processes of torchrun and srun are"),
        ("chunks_per_message", "4", "messages share a port, as TCP streams do: not evenly for long"),
        ("slow_nodes", _mapping(slow_nodes, 1.0), "factors on gradient_s: more than 10 % from the median"),
        ("jitter", _number(cv), f"median of {len(jitters)} workers, {pauses} pauses left out"),
        ("jitter_distribution", kind, f"the likelier for {kinds.count(kind)} of {len(jitters)} workers"),
        ("collective", "ring", "of any size on CPUs; NCCL's of large vectors"),
        ("gradient_of", gradient_of, "whose gradient_s this is; a run of others is warned"),
    ]
    return cluster_text(f"Measured: {' '.join(title.split())}", entries)


def cluster_text(title: str, entries: Sequence[tuple[str, str, str]]) -> str:
    """Write a file of the folder `cluster`. title: its first line. entries: key, value and comment of each line."""
    width = max(len(f"{key}: {value}") for key, value, _ in entries)
    lines = [f"# {title}", "defaults: [gigabit, _self_]  # keys that are not measured"]
    lines += [f"{f'{key}: {value}':<{width}}  # {comment}" for key, value, comment in entries]
    return "\n".join(lines) + "\n"


def _measured_network(
    overheads_s: Sequence[float], links: Mapping[tuple[int, int], MeasuredLink]
) -> list[tuple[str, str, str]]:
    """Return key, value and comment of what the network is like. A link is as fast as the slower of its
    two ports, so a port is as fast as the fastest of its links."""
    ranks = {rank for pair in links for rank in pair}
    rates = {rank: [link.duplex_bytes_per_s for pair, link in links.items() if rank in pair] for rank in sorted(ranks)}
    bandwidth, port_factors = _typical({rank: 8 * max(of_links) for rank, of_links in rates.items()})
    one_way = 8 * statistics.median(link.bytes_per_s for link in links.values())
    latency_s = statistics.median(link.latency_s for link in links.values())
    by_port = _mapping(port_factors, bandwidth)
    overhead_s = statistics.median(overheads_s)
    return [
        ("bandwidth", _number(bandwidth), f"payload, both directions busy; with one idle {_number(one_way)}"),
        ("latency_s", _number(latency_s), f"half a round trip, median of {len(links)} links"),
        ("node_bandwidth", by_port, "bit/s of single nodes: more than 10 % from the median"),
        ("receive_overhead_s", _number(overhead_s), "each received vector: median of what steps took longer"),
    ]


def _assumed_network(assumed: Cluster) -> list[tuple[str, str, str]]:
    """Return the same as `_measured_network`, of a configured cluster."""
    reason = "not measured, as there is one worker: as configured"
    keys = ("bandwidth", "latency_s", "receive_overhead_s")
    return [*((key, _number(getattr(assumed, key)), reason) for key in keys), ("node_bandwidth", "null", reason)]


def noise(jitters: Sequence[Jitter]) -> str | None:
    """Return a line of doubt and advice for gradient times that vary much, or None. jitters: [workers]."""
    cv = statistics.median(jitter.cv for jitter in jitters)
    if cv < NOISY:
        return None
    reason = "which other programs on this machine, or a gradient that is too short to be timed, may cause"
    return f"the gradient times vary by {cv:.0%}, {reason}: calibrate again when it is idle, with more --steps"


def disagreement(before: str, now: str, keys: Sequence[str]) -> str | None:
    """Return one line with the values of these keys that differ by more than a quarter between two files of a cluster;
    None if none differ, or if the first is not a file of a cluster."""
    try:
        files = [yaml.safe_load(text) for text in (before, now)]
    except yaml.YAMLError:
        return None
    if not all(isinstance(values, dict) for values in files):
        return None
    differing = []
    for key in keys:
        old, new = (values.get(key) for values in files)
        if isinstance(old, float) and isinstance(new, float) and max(old, new) > MOST_APART * min(old, new):
            differing.append(f"{key} was {_number(old)} and is {_number(new)}")
    return ", ".join(differing) or None


def _typical(values: Mapping[int, float]) -> tuple[float, dict[int, float]]:
    """Return the median of the nodes' values, and for each outlier its factor on the median."""
    median = statistics.median(values.values())
    return median, {node: value / median for node, value in values.items() if abs(value / median - 1) > OUTLIER}


def _mapping(factors: Mapping[int, float], unit: float) -> str:
    entries = ", ".join(f"{node}: {_number(factor * unit)}" for node, factor in factors.items())
    return f"{{{entries}}}" if entries else "null"


def _number(value: float) -> str:
    return f"{value:.3e}" if math.isfinite(value) else ".inf"
