"""Single streams, averaging over two continents, and one GPU a machine in a cloud."""

from __future__ import annotations

from studies.reproduction.measured_table import MeasuredRow, Summary
from studies.yardstick import described

PROBE = 10**9  # bytes of a message whose rate is read
TARGET, ONE_VM = 32_768, 70.1 / 2  # samples of a round; samples/s of a machine, from the row of two in one zone
CONVNEXT = 395_600_000  # bytes: 197.8 million parameters in fp16
ROUNDS = (
    "Rounds of this library take seconds besides, for finding each other and for accumulating, whatever the "
    "network; the "
    "material has neither those nor the seconds of a round, so nothing could be predicted but the network's "
    "share, which is small."
)


def _rate(summary: Summary) -> float:
    return PROBE * 8 / summary["time_s"] / 1e9


def _stream(name: str, measured: float, round_trip_ms: float, streams: int = 1) -> MeasuredRow:
    overrides = (
        "algo=dpsgd", "topology=one_peer_exponential", "nodes=2", "budget.steps=1", "cluster.gradient_s=0",
        "cluster.bandwidth=6.9e9",
        f"cluster.latency_s={round_trip_ms / 2e3:g}", "cluster.window_bytes=2.8e6", f"cluster.streams={streams}",
        f"cluster.message_bytes={PROBE}",
    )  # fmt: skip
    return MeasuredRow(f"{name}, Gbit/s", measured, overrides, _rate)


def _averaging(name: str, measured: float, nodes: int, islands: int) -> MeasuredRow:
    """Return a round of gradients of a target batch, averaged by groups of the two continents."""
    overrides = (
        "algo=sync", "algo.overlap=false", f"nodes={nodes}", f"cluster.islands={islands}",
        "cluster.wan_latency_s=0.0515",
        "cluster.wan_bandwidth=6.2e9", "cluster.bandwidth=6.9e9", "cluster.latency_s=3.3e-4",
        "cluster.window_bytes=2.8e6",
        f"cluster.collective={'hierarchical' if islands > 1 else 'ring'}", "cluster.collective_messages=true",
        f"cluster.message_bytes={CONVNEXT}", f"cluster.gradient_s={TARGET / nodes / ONE_VM:.10g}", "budget.steps=1",
    )  # fmt: skip
    return MeasuredRow(
        f"ConvNeXt-L, {name}, samples/s", measured, overrides, lambda summary: TARGET / summary["time_s"]
    )


def _scaling(model: str, nodes: int, measured: float, of_two: float, n_bytes: int, reason: str) -> MeasuredRow:
    """Return a speed-up; of_two: of two machines, which says what the library takes on each."""
    gradient_s = 100.0 / nodes  # of a round that one machine alone computes in 100 s
    overrides = (
        "algo=sync", "algo.overlap=false", f"nodes={nodes}", "cluster.bandwidth=3.3e9", "cluster.latency_s=1.5e-4",
        f"cluster.message_bytes={n_bytes}", "cluster.collective=ring", f"cluster.gradient_s={gradient_s:.10g}",
        "budget.steps=1",
    )  # fmt: skip
    label = f"{model}, {nodes} A10, speed-up"
    return MeasuredRow(label, measured, overrides, lambda summary: of_two / 2 * 100.0 / summary["time_s"], reason)


TABLE = described(
    "clouds",
    (
        _stream("one stream USA-Europe", 0.21, 103),
        _stream("one stream USA-Asia", 0.13, 157),
        _stream("one stream Europe-Asia", 0.08, 253),
        _stream("80 streams USA-Europe", 6.2, 103, 80),
        _averaging("4 machines, one zone", 140.4, 4, 1),
        _averaging("2 machines, two continents", 68.4, 2, 2),
        _averaging("4 machines, two continents", 135.8, 4, 2),
        *(_scaling("ResNet-50", p, up, 1.28, 51_114_064, ROUNDS) for p, up in ((3, 1.86), (4, 2.39), (8, 3.72))),
        *(_scaling("RoBERTa-XLM", p, up, 0.93, 1_120_000_000, ROUNDS) for p, up in ((3, 1.28), (4, 1.56), (8, 2.29))),
    ),
)
