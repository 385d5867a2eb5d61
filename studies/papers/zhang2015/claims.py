"""Judge the claims of Zhang et al., and draw the figures, from the logged runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from dsgd.record.reader import Run, number
from studies.papers import CLAIMS
from studies.papers.zhang2015.stability import (
    admm_radius,
    delayed_rate_bound,
    delayed_rate_by_bisection,
    growth_per_step,
    moving_rate_bound,
    round_robin_radius,
)
from studies.reproduction.chart_panels import FORMULA, ChartPanel, chart, line_of
from studies.reproduction.paper import Evidence
from studies.reproduction.verdict import Check, Finding

BELOW, ABOVE = 0.99, 1.05  # of the bound of E2
DELAYED_BELOW, DELAYED_ABOVE = 0.99, 1.01  # of that of E5

RADIUS_WORKERS = (3, 4, 5, 6, 8, 16, 32, 64)
RADIUS_RATES = (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
ADMM_WORKERS, PENALTIES = (3, 4, 8, 16), (0.5, 1.0, 2.5, 5.0, 10.0)
SMALL_RATE, LARGE_RATE = 1e-4, 0.1  # times curvature
EXAMPLE = (3, 1e-3, 2.5)  # workers, rate and penalty
WORKERS = (4, 8, 16)


def e2(evidence: Evidence) -> Finding:
    """Compare spectral radii of a round with 1, just below and just above a bound that does not know p."""
    claim = CLAIMS["E2"]
    below, above = (
        [round_robin_radius(p, lr_h, side * moving_rate_bound(lr_h)) for p in RADIUS_WORKERS for lr_h in RADIUS_RATES]
        for side in (BELOW, ABOVE)
    )
    stable, unstable = [], []
    for logged in map(evidence.__getitem__, claim.studies):
        low, high = sorted(logged.values("algo.alpha"))
        stable += logged.where(algo__alpha=low)
        unstable += logged.where(algo__alpha=high)
    slowest, fastest = min(map(growth_per_step, unstable)), max(map(growth_per_step, stable))
    checks = [
        claim.check("stable", f"largest spectral radius at {BELOW} of the bound, p = 3 to 64", max(below)),
        claim.check("grows", f"smallest spectral radius at {ABOVE} of the bound, p = 3 to 64", min(above)),
        claim.check("shrinks", f"runs at {BELOW} of the bound: largest growth per round", fastest),
        claim.check("grows", f"runs at {ABOVE} of the bound: smallest growth per round", slowest),
    ]
    return claim.judged(checks)


def e5(evidence: Evidence) -> Finding:
    """Compare the largest stable rate of Downpour in round-robin order with the formula."""
    claim = CLAIMS["E5"]
    checks: list[Check] = []
    runs = [run for name in claim.studies for run in evidence[name].runs]
    for workers in dict.fromkeys(run.setting("nodes") for run in runs):
        bound, limit = delayed_rate_bound(workers - 1), delayed_rate_by_bisection(workers - 1)
        low, high = sorted((run for run in runs if run.setting("nodes") == workers), key=_rate)
        shrinks, grows = growth_per_step(low), growth_per_step(high)
        checks += [
            claim.check("rate", f"p = {workers}: largest stable lr h, by roots", limit, bound),
            claim.check("shrinks", f"p = {workers}, run at {DELAYED_BELOW} of it: growth per step", shrinks),
            claim.check("grows", f"p = {workers}, run at {DELAYED_ABOVE} of it: growth per step", grows),
        ]
    staleness = max(abs(number(run.final("staleness_max")) - (run.nodes or 0) + 1) for run in runs)
    checks.append(claim.check("staleness", "runs: largest staleness less p - 1, largest difference", staleness))
    return claim.judged(checks)


def e6(evidence: Evidence) -> Finding:
    """Compare spectral radii of a round of EASGD and of ADMM with 1, over workers, rates and penalties."""
    claim = CLAIMS["E6"]
    pairs = [(p, rho) for p in ADMM_WORKERS for rho in PENALTIES]
    rates = (SMALL_RATE, EXAMPLE[1], 0.01, LARGE_RATE)
    elastic = [
        round_robin_radius(p, lr_h, lr_h * rho)
        for p, rho in pairs
        for lr_h in rates
        if lr_h * rho <= moving_rate_bound(lr_h)
    ]
    small, large = ([admm_radius(p, lr_h, rho) for p, rho in pairs] for lr_h in (SMALL_RATE, LARGE_RATE))
    checks = [
        claim.check(
            "stable", f"EASGD: largest radius less 1, lr h = {SMALL_RATE:g} to {LARGE_RATE:g}", max(elastic) - 1
        ),
        claim.check("grows", f"ADMM: smallest radius less 1, lr h = {SMALL_RATE:g}", min(small) - 1),
        claim.check("shrinks", f"ADMM: largest radius less 1, lr h = {LARGE_RATE:g}", max(large) - 1),
    ]
    return claim.judged(checks, radius=admm_radius(*EXAMPLE))


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
        ChartPanel("EASGD, in turn, lr h = 1", "moving rate over its bound", growth, elastic, level=1.0),
        ChartPanel("Downpour, in turn", "learning rate over its bound", growth, stale, level=1.0),
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
    return chart(*panels)


def _rate(run: Run) -> float:
    return number(run.setting("optimizer.lr"))


def _growth(runs: Sequence[Run], key: str, bound: float) -> list[tuple[float, float]]:
    return sorted((number(run.setting(key)) / bound, growth_per_step(run)) for run in runs)
