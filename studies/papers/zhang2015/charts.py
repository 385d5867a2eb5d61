"""The figures of Zhang et al. 2015."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsgd.record.reader import Run, number
from dsgd.report.interval import Estimate
from studies.papers.zhang2015.stability import (
    admm_radius,
    delayed_rate_bound,
    growth_per_step,
    moving_rate_bound,
    round_robin_radius,
)
from studies.papers.zhang2015.studies import DELAYED, DELAYED_WORKERS, ROUND_ROBIN
from studies.reproduction.paper import Evidence
from studies.reproduction.verdict import exactly

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUND_ROBIN_AT_1 = ROUND_ROBIN[1]  # with a rate times curvature of 1


def stability_figure(evidence: Evidence) -> Figure:
    """Draw by how much runs on a line grow in each round, just below and just above the bounds."""
    from studies.reproduction.chart_panels import FORMULA, ChartLine, ChartPanel, chart

    runs = evidence[ROUND_ROBIN_AT_1.name].runs
    bound = moving_rate_bound(1.0)
    elastic = [
        ChartLine(f"EASGD, p = {p}", "easgd", _growth([run for run in runs if run.nodes == p], "algo.alpha", bound), i)
        for i, p in enumerate((4, 8, 16))
    ]
    sides = [0.95 + 0.01 * i for i in range(16)]
    radii = [(side, exactly(round_robin_radius(16, 1.0, side * bound))) for side in sides]
    elastic.append(ChartLine("EASGD, p = 16, spectral radius", FORMULA, radii))
    stale = [
        ChartLine(
            f"Downpour, p = {p}",
            "downpour",
            _growth(evidence[study.name].runs, "optimizer.lr", delayed_rate_bound(p - 1)),
            (4, 8, 16).index(p),
        )
        for p, study in zip(DELAYED_WORKERS, DELAYED, strict=True)
        if p in (4, 8, 16)
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
    from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart

    rates = [10 ** (-4 + i / 10) for i in range(31)]
    panels = []
    for p in (3, 16):
        lines = []
        for i, rho in enumerate((1.0, 10.0)):
            elastic = [(rate, _exponent(round_robin_radius(p, rate, rate * rho), rate)) for rate in rates]
            admm = [(rate, _exponent(admm_radius(p, rate, rho), rate)) for rate in rates]
            lines.append(ChartLine(f"EASGD, rho = {rho:g}", "easgd", elastic, i, markers=False))
            lines.append(ChartLine(f"ADMM, rho = {rho:g}", "admm", admm, i, markers=False))
        panels.append(
            ChartPanel(f"p = {p}", "rate times curvature, lr h", "ln(radius) / (lr h)", lines, log_x=True, level=0.0)
        )
    return chart(panels)


def _exponent(radius: float, lr_h: float) -> Estimate:
    """Return the growth of a round for each unit of lr h, as an exponent."""
    return exactly(math.log(radius) / lr_h)


def _growth(runs: Sequence[Run], key: str, bound: float) -> list[tuple[float, Estimate]]:
    return sorted(((number(run.setting(key)) / bound, exactly(growth_per_step(run))) for run in runs), key=_first)


def _first(point: tuple[float, Estimate]) -> float:
    return point[0]
