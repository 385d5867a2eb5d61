"""Chen et al. 2016: synchronous SGD need not wait for the slowest workers."""

from __future__ import annotations

from math import exp, lgamma, log
from statistics import NormalDist

from matplotlib.figure import Figure

from dsgd.record.reader import Run
from dsgd.report.interval import Estimate, estimate
from studies.papers import CLAIMS, described, read_studies
from studies.reproduction.chart_panels import FORMULA, ChartLine, ChartPanel, chart, line_of
from studies.reproduction.logged import Logged, time_of_step
from studies.reproduction.paper import Claim, Evidence
from studies.reproduction.verdict import Finding

GRADIENT_S, JITTER = 0.1, 0.1  # seconds; standard deviation of the normal times, in means
TAILS = ("exponential", "normal")
STUDIES = read_studies("chen2016")
NODES = STUDIES["slowest_normal"].numbers("nodes")
CLUSTERS, BACKUPS = (STUDIES["backups_normal"].numbers(key) for key in ("nodes", "algo.backups"))


def a5(evidence: Evidence) -> Finding:
    """Compare the time of a step with the expected longest gradient, then the rates of used gradients."""
    claim = CLAIMS["A5"]
    checks = []
    for tail in TAILS:
        for run in evidence[f"slowest_{tail}"].runs:
            p = run.setting("nodes")
            what = f"{tail}, p = {p}: time of a step over the mean gradient"
            checks.append(claim.check("step", what, time_of_step(run) / GRADIENT_S, longest(tail, p, p)))
    largest = CLUSTERS[-1]
    for tail in TAILS:
        rates = {b: gain(evidence[f"backups_{tail}"], largest, b) for b in BACKUPS if b}
        best = max(rates, key=lambda b: rates[b].median)
        what = f"{tail}, p = {largest}: used gradients a second with {best} backups, the best number, over none"
        checks.append(claim.check("backups", what, rates[best]))
    gains = []
    for tail in TAILS:
        late = gain(evidence[f"backups_{tail}"], largest, 4).median
        if_stopped = longest(tail, largest, largest) / longest(tail, largest, largest - 4) * (largest - 4) / largest
        gains.append(f"{tail} {if_stopped:.3f} instead of {late:.3f}")
    return claim.judged(checks, gains="; ".join(gains))


def longest(tail: str, p: int, k: int) -> float:
    """Return the expected k-th smallest of p gradient times, in means: of exponential ones H_p - H_(p - k)."""
    if tail == "exponential":
        return sum(1 / (p - i) for i in range(k))
    cells, normal = 20_000, NormalDist(1.0, JITTER)
    shares = [(i + 0.5) / cells for i in range(cells)]  # quantiles, weighed by the k-th one's beta distribution
    scale = lgamma(p + 1) - lgamma(k) - lgamma(p - k + 1) - log(cells)
    weights = (exp(scale + (k - 1) * log(u) + (p - k) * log(1 - u)) for u in shares)
    return sum(weight * normal.inv_cdf(u) for weight, u in zip(weights, shares, strict=True))


def gain(logged: Logged, nodes: int, backups: int) -> Estimate:
    """Return used gradients a second with backups over those without, seed by seed."""
    pairs = zip(_of(logged, nodes, backups), _of(logged, nodes, 0), strict=True)
    return estimate([_used_per_s(backed) / _used_per_s(none) for backed, none in pairs])


def backups(evidence: Evidence) -> Figure:
    """Draw the rate of used gradients against the number of backups."""
    panels = []
    for tail in TAILS:
        logged = evidence[f"backups_{tail}"]
        lines = [
            ChartLine(f"{p} nodes", "sync", [(b, gain(logged, p, b)) for b in BACKUPS], variant)
            for variant, p in enumerate(CLUSTERS)
        ]
        lines.append(line_of("no backups", FORMULA, [(b, 1.0) for b in BACKUPS]))
        panels.append(ChartPanel(tail, "backups", "used gradients a second, over none", lines))
    return chart(*panels)


def _of(logged: Logged, nodes: int, backups: int) -> list[Run]:
    return sorted(logged.where(nodes=nodes, algo__backups=backups), key=lambda run: run.setting("seed"))


def _used_per_s(run: Run) -> float:
    return (run.setting("nodes") - run.setting("algo.backups")) / time_of_step(run)


PAPER = described("chen2016", Claim(CLAIMS["A5"], a5), charts={"backups": backups})
