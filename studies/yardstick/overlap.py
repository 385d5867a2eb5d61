"""ResNet-50 on 4 to 32 GPUs: all-reduce after the backward pass, and layer by layer behind it."""

from __future__ import annotations

from studies.reproduction.measured_table import MeasuredRow, throughput
from studies.yardstick import described

BATCH, STEPS = 64, 2
ALONE = 253.1  # samples/s of one GPU
MESSAGE = 102_228_128  # 25,557,032 parameters in fp32
LAYERS = 161  # tensors
PCIE = 5.1e10  # bit/s
# samples/s of 4, 8, 16 and 32 GPUs
MEASURED = {
    ("all-reduce after it", "10 GbE"): (925, 1282, 2485, 4921),
    ("all-reduce after it", "InfiniBand"): (920, 1821, 3603, 7127),
    ("layer by layer", "10 GbE"): (1015, 1796, 3147, 5113),
    ("layer by layer", "InfiniBand"): (1014, 2017, 3946, 7327),
}


def _rows() -> list[MeasuredRow]:
    rows = []
    for (way, network), rates in MEASURED.items():
        overlap = way == "layer by layer"
        for nodes, measured in zip((4, 8, 16, 32), rates, strict=True):
            if nodes == 4 and not overlap and network == "10 GbE":
                continue  # it gave the rate of PCIe
            slow = network == "10 GbE" and nodes > 4
            overrides = (
                "cluster=hkbu_10gbe" if slow else "cluster=hkbu_ib",
                f"cluster.gradient_s={BATCH / ALONE:.5g}",
                f"algo.overlap={str(overlap).lower()}",
                *((f"cluster.bucket_bytes={MESSAGE / LAYERS:g}",) if overlap else ()),
                f"nodes={nodes}",
                f"budget.steps={STEPS}",
            )
            label = f"{way}, {network}, {nodes} GPUs"
            rows.append(MeasuredRow(label, measured, overrides, throughput(STEPS * nodes * BATCH)))
    return rows


TABLE = described("overlap", _rows())
