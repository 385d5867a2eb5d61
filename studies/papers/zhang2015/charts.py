"""The figures of Zhang et al. 2015."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from dsgd.record.reader import Run, number
from studies.papers.zhang2015.stability import (
    admm_radius,
    delayed_rate_bound,
    growth_per_step,
    moving_rate_bound,
    round_robin_radius,
)
from studies.reproduction.chart_panels import FORMULA, ChartPanel, chart, line_of
from studies.reproduction.paper import Evidence

WORKERS = (4, 8, 16)


def stability_figure(evidence: Evidence) -> Figure:
    """Draw by how much runs on a line grow in each round, just below and just above the bounds."""
    bound = moving_rate_bound(1.0)
    turns = evidence["round_robin_1"]
    elastic = [
        line_of(f"EASGD, p = {p}", "easgd", _growth(turns.where(nodes=p), "algo.alpha", bound), i)
        for i, p in enumerate(WORKERS)
    ]
    sides = [0.95 + 0.01 * i for i in range(16)]
    radii = [(side, round_robin_radius(16, 1.0, side * bound)) for side in sides]
    elastic.append(line_of("EASGD, p = 16, spectral radius", FORMULA, radii))
    stale = [
        line_of(f"Downpour, p = {p}", "downpour", _growth(evidence[f"delayed_{p}"].runs, "optimizer.lr", limit), i)
        for i, (p, limit) in enumerate((p, delayed_rate_bound(p - 1)) for p in WORKERS)
    ]
    growth = "growth in each round"
    return chart(
        [
            ChartPanel("EASGD, in turn, lr h = 1", "moving rate over its bound", growth, elastic, level=1.0),
            ChartPanel("Downpour, in turn", "learning rate over its bound", growth, stale, level=1.0),
        ]
    )


def admm_figure(_: Evidence) -> Figure:
    """Draw how fast an error grows with EASGD and with ADMM, over the rate: above 0 they diverge."""
    rates = [10 ** (-4 + i / 10) for i in range(31)]
    panels = []
    for p in (3, 16):
        lines = []
        for i, rho in enumerate((1.0, 10.0)):
            # the growth of a round for each unit of lr h, as an exponent
            elastic = [(rate, math.log(round_robin_radius(p, rate, rate * rho)) / rate) for rate in rates]
            admm = [(rate, math.log(admm_radius(p, rate, rho)) / rate) for rate in rates]
            lines.append(line_of(f"EASGD, rho = {rho:g}", "easgd", elastic, i, markers=False))
            lines.append(line_of(f"ADMM, rho = {rho:g}", "admm", admm, i, markers=False))
        panels.append(
            ChartPanel(f"p = {p}", "rate times curvature, lr h", "ln(radius) / (lr h)", lines, log_x=True, level=0.0)
        )
    return chart(panels)


def _growth(runs: Sequence[Run], key: str, bound: float) -> list[tuple[float, float]]:
    return sorted((number(run.setting(key)) / bound, growth_per_step(run)) for run in runs)
