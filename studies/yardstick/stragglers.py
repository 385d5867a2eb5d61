"""The slowest of several data-parallel ranks in a step, of a trace whose ranks have a heavy tail."""

from __future__ import annotations

from studies.reproduction.measured_table import MeasuredRow, per_step
from studies.yardstick import described

STEPS = 1000
# of a pipeline stage: mean seconds of computing in a step, their variation over the ranks, and its skew
STAGES = {0: (4.076, 0.144, 1.02), 1: (6.104, 0.098, 1.03)}
# stage, ranks, the seconds of the slowest of them, over those of the mean
MEASURED = (
    (0, 4, 1.157), (0, 8, 1.232), (0, 16, 1.305), (0, 32, 1.380),
    (1, 4, 1.107), (1, 8, 1.158), (1, 16, 1.208), (1, 32, 1.260),
)  # fmt: skip


def _row(stage: int, ranks: int, slowest: float) -> MeasuredRow:
    mean_s, cv, skew = STAGES[stage]
    overrides = (
        "algo=sync", "algo.overlap=false", "cluster=ideal", f"nodes={ranks}", f"cluster.gradient_s={mean_s}",
        f"cluster.jitter={cv}", "cluster.jitter_distribution=lognormal", f"cluster.jitter_skew={skew}",
        f"budget.steps={STEPS}",
    )  # fmt: skip
    return MeasuredRow(f"stage {stage}, slowest of {ranks} ranks", slowest * mean_s, overrides, per_step(STEPS))


TABLE = described("stragglers", tuple(_row(*row) for row in MEASURED))
