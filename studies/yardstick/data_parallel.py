"""PyTorch's DistributedDataParallel with one to eight hosts of eight GPUs."""

from __future__ import annotations

from studies.reproduction.measured_table import MeasuredRow, MeasuredTable, per_step

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


TABLE = MeasuredTable(
    key="buckets",
    order=7,
    title="PyTorch's own benchmark of data parallelism",
    source="PyTorch DDP's benchmark, ResNet-50, batch 32: DGX of eight V100, 4 x 100 Gbit/s InfiniBand between "
    "them, medians",
    unit="s",
    given="0.104 s of a step on two GPUs, with what the library itself costs (0.097 on one alone); neither is a "
    "row. Buckets of 25 MiB, "
    "the library's default; NVLink of 150 GB/s.",
    rows=tuple(_row(nodes, measured) for nodes, measured in MEASURED),
    left_out="Buckets of 1 MB, of which only a range is published (3.5 to 10 % slower).",
)
