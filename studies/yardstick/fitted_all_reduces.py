"""All-reduces of 100 MB, from constants a + b N that others fitted to theirs."""

from __future__ import annotations

from studies.reproduction.measured_table import MeasuredRow, per_step
from studies.yardstick import described

SIZE = 10**8  # bytes
BOUND = (
    "No all-reduce among 8 nodes can do this: each sends 2 (p - 1) / p vectors, 140 ms at 10 Gbit/s. The "
    "constant is of "
    "something else, perhaps of two hosts of four, which send one vector (80 ms)."
)


def _row(
    name: str, nodes: int, a: float, b: float, bandwidth: float, efficiency: float, reason: str = ""
) -> MeasuredRow:
    overrides = (
        "algo=sync", "algo.overlap=false", "cluster.gradient_s=0", f"nodes={nodes}", f"cluster.bandwidth={bandwidth:g}",
        f"cluster.protocol_efficiency={efficiency:.5g}", "cluster.latency_s=1.34e-5",
        "cluster.bucket_startup_s=1.17e-4",
        f"cluster.message_bytes={SIZE}", "cluster.collective=ring", "budget.steps=1",
    )  # fmt: skip
    return MeasuredRow(name, 1e3 * (a + b * SIZE), overrides, per_step(1, 1e3), reason)


TABLE = described(
    "fitted_all_reduces",
    (
        _row("10 GbE, 8 nodes", 8, 5.23e-4, 8.57e-10, 1e10, 1448 / 1538, BOUND),
        _row("56 Gbit/s InfiniBand, 4 nodes", 4, 4.2e-5, 2.06e-10, 5.6e10, 64 / 66),
        _row("56 Gbit/s InfiniBand, 8 nodes", 8, 9.75e-5, 3.06e-10, 5.6e10, 64 / 66),
    ),
)
