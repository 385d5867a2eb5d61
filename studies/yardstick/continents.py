"""Training between continents: what a round of communication takes of the FLOPs."""

from __future__ import annotations

from studies.reproduction.measured_table import MeasuredRow, MeasuredTable, computing

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


TABLE = MeasuredTable(
    key="continents",
    order=5,
    title="FLOPs used while training between continents",
    source="INTELLECT-1 (arXiv 2412.01152), table 2: 10B parameters, 14 nodes of eight H100, 100 steps a round, int8",
    unit="% of the FLOPs",
    given="43.3 % without communication; the ring's bandwidth from the all-reduces, 382 s with Europe, which is no row "
    "therefore (0.39 Gbit/s; 103 s within the USA is 1.44); 22.5 s of a step from the share within the USA, 41.4 %.",
    rows=(_row("with Europe", 37.1, 0.39e9),),
)
