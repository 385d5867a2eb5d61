"""256 MiB averaged in three ways by 4, 8 and 16 hosts whose network was shaped."""

from __future__ import annotations

from studies.reproduction.measured_table import MeasuredRow, per_step
from studies.yardstick import described
from studies.yardstick.shaped_network import MIB, nccl

# of each network: bandwidth in bit/s, latency in seconds; seconds of each way for 4, 8 and 16 hosts
NETWORKS = {
    "AWS": (8.6e9, 5e-5, (0.37, 0.45, 0.53), (0.57, 0.59, 0.62), (0.42, 0.53, 0.60)),
    "5 ms, 2 Gbit/s": (2e9, 5e-3, (1.77, 2.50, 4.72), (2.86, 3.29, 2.99), (2.35, 2.60, 2.88)),
    "50 ms, 1 Gbit/s": (1e9, 5e-2, (7.57, 8.27, 28.6), (6.65, 7.73, 10.9), (4.77, 6.07, 7.27)),
}
UNORDERED = (
    "The source's own times are not in order: 2.86, 3.29 and 2.99 s for 4, 8 and 16 hosts, though the chain gets "
    "longer with every host."
)
SLOW_START = (
    "TCP begins anew after a pause (RFC 5681): from 10 packets (RFC 6928), twice as many each round trip of 100 ms, it "
    "takes half a second to a window of 4 MiB. The model has constant windows; with this it would be 19% too fast."
)
REASONS = {("one server", "5 ms, 2 Gbit/s", 8): UNORDERED, ("all-reduce", "50 ms, 1 Gbit/s", 4): SLOW_START}
WAYS = ("all-reduce", "one server", "sharded server")


def _words(way: str, nodes: int, latency_s: float) -> tuple[tuple[str, ...], int]:
    """Return the words of a way, and how often they do it: p all-reduces of the p-th part, one after the other; p of
    NCCL's reduces and p broadcasts, whose parts follow each other along a chain; a share of the vector with each host,
    after the start-up of two collectives."""
    if way == "sharded server":
        startup = f"cluster.gradient_s={2 * 3 * latency_s:g}"
        shards = (f"algo.servers={nodes}", "cluster.servers_colocated=true")
        return ("algo=downpour", *shards, startup, "budget.steps=20"), 20
    if way == "one server":
        return (f"cluster.message_bytes={256 * MIB}", "cluster.collective=chain"), 1
    return (f"cluster.message_bytes={256 * MIB // nodes}", "cluster.collective=ring", f"budget.steps={nodes}"), 1


def _rows() -> list[MeasuredRow]:
    rows = []
    for network, (bandwidth, latency_s, *of_ways) in NETWORKS.items():
        for way, times in zip(WAYS, of_ways, strict=True):
            for nodes, measured in zip((4, 8, 16), times, strict=True):
                more, steps = _words(way, nodes, latency_s)
                given = {word.partition("=")[0] for word in more}
                given |= {"algo.overlap"} if way == "sharded server" else set()
                overrides = (f"cluster.message_bytes={256 * MIB}", *nccl(bandwidth, latency_s))
                overrides = (
                    *(word for word in overrides if word.partition("=")[0] not in given),
                    f"nodes={nodes}",
                    *more,
                )
                name = f"{way}, {network}, {nodes} hosts"
                reason = REASONS.get((way, network, nodes), "")
                rows.append(MeasuredRow(name, measured, overrides, per_step(steps), reason))
    return rows


TABLE = described("three_ways", _rows())
