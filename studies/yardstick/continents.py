"""Training between continents: what a round of communication takes of the FLOPs."""

from __future__ import annotations

from studies.reproduction.measured_table import MeasuredRow, computing
from studies.yardstick import described

INNER, ALONE = 100, 43.3  # steps of a round; % of the FLOPs that are used without communication


def _row(name: str, measured: float, bandwidth: float) -> MeasuredRow:
    overrides = (
        "cluster=intellect1",
        "cluster.gradient_s=22.5",
        f"cluster.bandwidth={bandwidth:g}",
        "nodes=14",
        "algo=diloco",
    )
    steps = (f"algo.tau={INNER}", f"budget.steps={INNER}")
    return MeasuredRow(name, measured, (*overrides, *steps), lambda summary: ALONE * computing(summary))


TABLE = described("continents", (_row("with Europe", 37.1, 0.39e9),))
