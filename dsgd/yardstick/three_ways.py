"""256 MiB averaged in three ways by 4, 8 and 16 hosts whose network was shaped."""

from __future__ import annotations

from dsgd.reproduction.measured_table import MeasuredRow, MeasuredTable, per_step
from dsgd.yardstick.shaped_network import MIB, nccl

TWICE = (
    "The source has two times for one thing: its table of all-reduces, above, has 1.65 and 1.92 s for 4 and 8 "
    "hosts on "
    "this network, which the model meets within 1 %."
)
QUEUE = (
    "netem holds 1,000 packets by default (tc-netem(8)), and a rate times this delay is more than that in packets of "
    "1,500 bytes: TCP loses packets and slows down, which a constant window does not show."
)
# of each network: bandwidth in bit/s, latency in seconds; seconds of each way for 4, 8 and 16 hosts; why they err
NETWORKS = {
    "AWS": (8.6e9, 5e-5, (0.37, 0.45, 0.53), (0.57, 0.59, 0.62), (0.42, 0.53, 0.60), ""),
    "5 ms, 2 Gbit/s": (2e9, 5e-3, (1.77, 2.50, 4.72), (2.86, 3.29, 2.99), (2.35, 2.60, 2.88), TWICE),
    "50 ms, 1 Gbit/s": (1e9, 5e-2, (7.57, 8.27, 28.6), (6.65, 7.73, 10.9), (4.77, 6.07, 7.27), QUEUE),
}
WAYS = ("all-reduce", "one server", "sharded server")


def _words(way: str, nodes: int) -> tuple[str, ...]:
    """Return the words of a way: a ring; NCCL's reduce and broadcast, a chain; a share of the vector with each "
    "host."""
    if way == "sharded server":
        return ("algo=downpour", f"algo.servers={nodes}", "cluster.servers_colocated=true", "budget.steps=20")
    return (f"cluster.collective={'ring' if way == 'all-reduce' else 'chain'}",)


def _rows() -> list[MeasuredRow]:
    rows = []
    for network, (bandwidth, latency_s, *of_ways, reason) in NETWORKS.items():
        for way, times in zip(WAYS, of_ways, strict=True):
            for nodes, measured in zip((4, 8, 16), times, strict=True):
                words = nccl(bandwidth, latency_s)
                if way == "sharded server":
                    words = tuple(word for word in words if not word.startswith(("algo", "budget")))
                words = (*words, f"nodes={nodes}", f"cluster.message_bytes={256 * MIB}", *_words(way, nodes))
                rows.append(
                    MeasuredRow(
                        f"{way}, {network}, {nodes} hosts",
                        measured,
                        words,
                        per_step(20 if way == "sharded server" else 1),
                        reason,
                    )
                )
    return rows


TABLE = MeasuredTable(
    key="three_ways",
    order=2,
    title="All-reduce, one server, sharded server",
    source="BinhangYuan/tc_cluster_setting, Simulate_DP.md: 256 MiB; one server is NCCL's reduce and broadcast, "
    "the sharded one "
    "an all-to-all and an all-gather",
    unit="s",
    given="As in the table before; nothing was fitted here.",
    rows=_rows(),
)
