"""All-reduces of 128 and 256 MiB between hosts whose network was shaped."""

from __future__ import annotations

from studies.reproduction.measured_table import MeasuredRow, per_step
from studies.yardstick import described

MIB = 1 << 20
# what a ring of NCCL has under way between two hosts: 4 MiB of buffers (NCCL_BUFFSIZE) in each of two channels, as it
# makes two of the one that a single network card gives
NCCL_BYTES = 2 * 4 * MIB
# of each network: bandwidth in bit/s, latency in seconds; milliseconds of NCCL and gloo for 4 and 8 hosts, each of 128
# and 256 MiB
NETWORKS = {
    "AWS": (8.6e9, 5e-5, ((175, 363), (208, 443)), ((327, 657), (382, 765))),
    "1 ms, 5 Gbit/s": (5e9, 1e-3, ((329, 655), (383, 763)), ((485, 959), (537, 1111))),
    "5 ms, 2 Gbit/s": (2e9, 5e-3, ((835, 1650), (970, 1921)), ((1517, 2989), (1814, 3562))),
    "10 ms, 1 Gbit/s": (1e9, 1e-2, ((1669, 3298), (1940, 3841)), ((2993, 5909), (3582, 6999))),
}
WHOLE = (
    "algo=sync",
    "algo.overlap=false",
    "cluster.gradient_s=0",
    "cluster.protocol_efficiency=0.99",
    "budget.steps=1",
)


def nccl(bandwidth: float, latency_s: float) -> tuple[str, ...]:
    """Return the words of a network as NCCL uses it."""
    return (
        *WHOLE,
        f"cluster.bandwidth={bandwidth:g}",
        f"cluster.latency_s={latency_s:g}",
        f"cluster.collective_startup_s={3 * latency_s:g}",
        f"cluster.connection_bandwidth={8 * NCCL_BYTES / (2 * latency_s):g}",
        "cluster.slice_bytes=524288",
    )


def gloo(bandwidth: float, latency_s: float) -> tuple[str, ...]:
    """Return the words of a network as gloo uses it: one connection, slices of 1 MiB."""
    return (
        *WHOLE,
        f"cluster.bandwidth={bandwidth:g}",
        f"cluster.latency_s={latency_s:g}",
        "cluster.window_bytes=2.8e6",
        "cluster.connection_bandwidth=5e9",
        "cluster.slice_bytes=1048576",
    )


def _rows() -> list[MeasuredRow]:
    rows = []
    for network, (bandwidth, latency_s, *of_backends) in NETWORKS.items():
        for name, words_of, times in zip(("NCCL", "gloo"), (nccl, gloo), of_backends, strict=True):
            for nodes, of_sizes in zip((4, 8), times, strict=True):
                for mib, measured in zip((128, 256), of_sizes, strict=True):
                    # gloo's one connection is limited below what the hosts' ports carry
                    overrides = words_of(1e10 if network == "AWS" and name == "gloo" else bandwidth, latency_s)
                    size = (f"nodes={nodes}", f"cluster.message_bytes={mib * MIB}", "cluster.collective=ring")
                    label = f"{name}, {network}, {nodes} hosts, {mib} MiB"
                    rows.append(MeasuredRow(label, measured, (*overrides, *size), per_step(1, 1e3)))
    return rows


TABLE = described("shaped_network", _rows())
