"""The paper's figures."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from dsgd.record.reader import Run
from studies.papers.lian2017.claims import AXES, EIGENVALUES, LATE, SLOW, consensus_distance, measured_distance
from studies.reproduction.chart_panels import FORMULA, ChartPanel, chart, line_of
from studies.reproduction.logged import step_s
from studies.reproduction.paper import Evidence

TIMES = "times of ResNet-20: messages of 1.08 MB, gradients of 50 ms"


def step_time(evidence: Evidence) -> Figure:
    """Draw the time of a step against the number of nodes, on both networks."""
    panels = []
    for cluster, title in ((SLOW, "10 Mbit/s"), (LATE, "5 ms")):
        runs = [run for name in ("centralised", "decentralised") for run in evidence[name].where(cluster__name=cluster)]
        panels.append(_step_times(title, "nodes", runs, "nodes"))
    return chart(panels, [TIMES])


def networks(evidence: Evidence) -> Figure:
    """Draw the time of a step against the bandwidth, and against the latency, as the paper does of an epoch."""
    units = {"bandwidth": ("0.1 ms", "bandwidth (Mbit/s)", 1e6), "latency": ("1 Gbit/s", "latency (ms)", 1e-3)}
    panels = []
    for study, (key, _) in AXES.items():
        title, label, unit = units[study]
        panels.append(_step_times(title, label, evidence[study].runs, key, unit))
    return chart(panels, [f"8 nodes; {TIMES}"])


def _step_times(title: str, label: str, runs: Sequence[Run], key: str, unit: float = 1) -> ChartPanel:
    """Return the time of a step against a setting, in this unit, for each way of communicating."""
    lines = []
    for variant, name in enumerate(dict.fromkeys(map(_called, runs))):
        way = [run for run in runs if _called(run) == name]
        points = {run.setting(key) / unit: step_s(run) for run in way}  # D-PSGD's are the same with every collective
        lines.append(line_of(name, way[0].algorithm, sorted(points.items()), variant))
    return ChartPanel(title, label, "time of a step (virtual s)", lines, log_x=True, log_y=True)


def consensus(evidence: Evidence) -> Figure:
    """Draw the consensus distance on each graph against its closed form."""
    expected = {name: consensus_distance(eigenvalues) for name, eigenvalues in EIGENVALUES.items()}
    measured = sorted((expected[name], measured_distance(evidence, name)) for name in EIGENVALUES)
    lines = [
        line_of("measured", "dpsgd", measured),
        line_of("closed form", FORMULA, [(x, x) for x, _ in measured]),
    ]
    axes = ("closed form", "squared consensus distance\nper coordinate")
    return chart([ChartPanel("16 nodes: complete, hypercube, torus, ring", *axes, lines)])


def _called(run: Run) -> str:
    """Name a way of communicating: D-PSGD on a ring, or the collective."""
    return (
        "D-PSGD, ring" if run.algorithm == "dpsgd" else f"{run.setting('cluster.collective').replace('_', ' ')} (sync)"
    )
