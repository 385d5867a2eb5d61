"""Hours of an epoch with an asynchronous and a synchronous parameter server, on CPUs."""

from __future__ import annotations

from studies.reproduction.measured_table import MeasuredRow, Summary
from studies.yardstick import described

BATCHES = 400  # of an epoch; in the ratio to one worker alone their number cancels out, but for the network
ALONE_H = 1.79
UNKNOWN = (
    "The source has neither the network nor the cores of its machines. Ten workers in step take longer for an "
    "epoch than five, "
    "though each computes half as much: what slows them is no network that the five would not meet, too."
)


def _row(way: str, workers: int, measured: float, reason: str = "") -> MeasuredRow:
    steps = BATCHES // workers
    how = (
        ("algo=downpour",) if way == "asynchronous" else ("algo=sync", "algo.overlap=false", "cluster.collective=star")
    )
    overrides = (
        *how, f"nodes={workers}", f"budget.steps={steps}", f"cluster.gradient_s={ALONE_H * 3600 / BATCHES:.10g}",
        "cluster.bandwidth=1e9", "cluster.message_bytes=46758048",
    )  # fmt: skip

    def hours(summary: Summary) -> float:
        return summary["time_s"] / 3600

    return MeasuredRow(f"{way}, {workers} workers", measured, overrides, hours, reason)


TABLE = described(
    "asynchronous",
    (
        _row("asynchronous", 5, 0.39),
        _row("asynchronous", 10, 0.25, UNKNOWN),
        _row("synchronous", 5, 0.68, UNKNOWN),
        _row("synchronous", 10, 0.77, UNKNOWN),
    ),
)
