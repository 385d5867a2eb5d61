"""The figures of Zhang et al. 2015."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsgd.record.reader import Run, number
from dsgd.report.contest import final_loss
from dsgd.report.interval import Estimate, estimate
from studies.papers.zhang2015.claims import CONVERGED, racers
from studies.papers.zhang2015.stability import (
    admm_radius,
    delayed_rate_bound,
    growth_per_step,
    moving_rate_bound,
    round_robin_radius,
)
from studies.papers.zhang2015.studies import DELAYED, DELAYED_WORKERS, LONG, PERIODS, ROUND_ROBIN, SHORT, WORKERS
from studies.reproduction.paper import Evidence
from studies.reproduction.verdict import exactly

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from studies.reproduction.chart_panels import ChartPanel
    from studies.reproduction.logged import Logged

LARGEST_LOSS = 2.5  # that is drawn: above what guessing costs
ROUND_ROBIN_AT_1 = ROUND_ROBIN[1]  # with a rate times curvature of 1
NAMES = ("EAMSGD", "EASGD", "Downpour")


def rates_figure(evidence: Evidence) -> Figure:
    """Draw the loss at the end against the rate, for each period."""
    short = [rates_panel(evidence["easgd_rates_short"], evidence["downpour_rates_short"], 8, tau) for tau in SHORT]
    return rates_chart(
        short + [rates_panel(evidence["easgd_rates"], evidence["downpour_rates"], 8, tau) for tau in LONG]
    )


def rates_panel(easgd: Logged, downpour: Logged, nodes: int, tau: int) -> ChartPanel:
    """Return the loss at the end against the rate, of both methods with one period."""
    from studies.reproduction.chart_panels import ChartLine, ChartPanel

    elastic = easgd.where(nodes=nodes, algo__tau=tau)
    lines = [
        ChartLine("EASGD", "easgd", _loss_by_rate(elastic)),
        ChartLine("Downpour", "downpour", _loss_by_rate(downpour.where(nodes=nodes, algo__n_push=tau))),
    ]
    level = CONVERGED * number(elastic[0].metrics[0].get("test_loss"))
    title = f"p = {nodes}, tau = {tau}"
    return ChartPanel(title, "learning rate", "test loss at the end", lines, log_x=True, level=level)


def rates_chart(panels: Sequence[ChartPanel]) -> Figure:
    """Draw panels of losses against rates, with a note on what is not drawn."""
    from studies.reproduction.chart_panels import chart

    note = f"Dotted: the loss below which a run counts as converged. Not drawn: losses above {LARGEST_LOSS}, diverged."
    return chart(panels, [note])


def race_figure(evidence: Evidence) -> Figure:
    """Draw the test loss against time, for each number of workers."""
    from studies.reproduction.chart_panels import ChartPanel, chart, curve

    panels = []
    for nodes in WORKERS:
        contenders = zip(NAMES, racers(evidence["race"], nodes), (1, 0, 0), strict=True)
        lines = [curve(name, contender.runs, "time_s", "test_loss", variant) for name, contender, variant in contenders]
        target = evidence["race"].runs[0].target
        panels.append(ChartPanel(f"p = {nodes}", "virtual time (s)", "test loss", lines, level=target))
    return chart(panels, ["Dotted: the target."])


def periods_figure(evidence: Evidence) -> Figure:
    """Draw the test error of the centre against the period, and against time for each period."""
    from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart, curve

    runs = {tau: evidence["periods"].contender(algo__tau=tau).runs for tau in PERIODS}
    errors = [(tau, estimate([1 - number(run.final("test_accuracy")) for run in runs[tau]])) for tau in PERIODS]
    against_time = [curve(f"tau = {tau}", runs[tau], "time_s", "test_error", i) for i, tau in enumerate((1, 4, 16, 64))]
    return chart(
        [
            ChartPanel(
                "at the end", "period tau", "test error", [ChartLine("at the end", "easgd", errors)], log_x=True
            ),
            ChartPanel("on the way", "virtual time (s)", "test error", against_time, log_y=True),
        ]
    )


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


def _loss_by_rate(runs: Sequence[Run]) -> list[tuple[float, Estimate]]:
    """Return rate and final loss over seeds, as far as most seeds completed with a loss that can be drawn."""
    points = []
    for rate in sorted({number(run.setting("optimizer.lr")) for run in runs}):
        at = [run for run in runs if number(run.setting("optimizer.lr")) == rate]
        loss = estimate([final_loss(run) if run.outcome == "completed" else math.inf for run in at])
        if loss.median <= LARGEST_LOSS:
            points.append((rate, Estimate(loss.median, loss.low, min(loss.high, LARGEST_LOSS), loss.count)))
    return points
