"""PyTorch's DistributedDataParallel with one to eight hosts of eight GPUs."""

from __future__ import annotations

from studies.reproduction.measured_table import MeasuredRow, per_step
from studies.yardstick import described

STEPS = 2
# GPUs, seconds a step
MEASURED = ((4, 0.105), (8, 0.108), (16, 0.109), (32, 0.110), (64, 0.113))


def _row(nodes: int, measured: float) -> MeasuredRow:
    between = 4e11 if nodes > 8 else 1.2e12  # bit/s: four ports of InfiniBand a host; six links of NVLink a GPU
    overrides = (
        "algo=sync", f"nodes={nodes}", "cluster.gradient_s=0.104", f"cluster.bandwidth={between:g}",
        "cluster.latency_s=5e-6",
        "cluster.message_bytes=102228128", "cluster.bucket_bytes=26214400", "cluster.slice_bytes=524288",
        "cluster.collective=ring", f"budget.steps={STEPS}",
    )  # fmt: skip
    name = f"{nodes} GPUs of one host" if nodes <= 8 else f"{nodes // 8} hosts of 8 GPUs"
    return MeasuredRow(name, measured, overrides, per_step(STEPS))


TABLE = described("buckets", tuple(_row(nodes, measured) for nodes, measured in MEASURED))
