"""The slowest of several data-parallel ranks in a step, of a trace whose ranks have a heavy tail."""

from __future__ import annotations

from studies.reproduction.measured_table import MeasuredRow, MeasuredTable, per_step

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


TABLE = MeasuredTable(
    key="stragglers",
    order=10,
    title="The slowest of 4 to 32 ranks",
    source="ByteDance-Seed/StragglerAnalysis, a job of 32 data-parallel ranks and two pipeline stages: 45 steps, over "
    "all choices of so many ranks",
    unit="s",
    given="Of each stage the mean, and the variation and skew over its ranks, which the law takes as they are. With a "
    "gamma or a log-normal of the same variation the slowest of 32 would be 3 to 4% too fast.",
    left_out="The job of four ranks, one of which takes 2.36 times as long in its first stage, and the others the same "
    "within 0.7%: cluster.slow_nodes says so, and there is nothing to predict.",
    rows=tuple(_row(*row) for row in MEASURED),
)
