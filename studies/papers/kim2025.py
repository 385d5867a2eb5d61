"""Kim et al. 2025: HALoS, asynchronous local SGD with a server in each region and a global one."""

from __future__ import annotations

from matplotlib.figure import Figure

from studies.papers import CLAIMS, described, read_studies
from studies.reproduction.chart_panels import ChartPanel, chart, line_of
from studies.reproduction.logged import time_of_sample
from studies.reproduction.paper import Claim, Evidence
from studies.reproduction.verdict import Finding, judged, over_region

GRADIENTS_S = read_studies("kim2025")["halos_steady"].numbers("cluster.gradient_s")
OTHERS = ("synchronous", "asynchronous")
METHODS = {"synchronous": "DiLoCo", "asynchronous": "asynchronous DiLoCo", "halos": "HALoS"}
TIMES = ("steady", "stragglers")


def d2(evidence: Evidence) -> Finding:
    """Compare the times of equal samples, by the time of a gradient."""
    claim, cells = CLAIMS["D2"], {}
    for gradient_s in GRADIENTS_S:
        checks = []
        for times in TIMES:
            for other in OTHERS:
                what = f"{times}: time of {METHODS[other]} over that of HALoS, equal samples"
                checks.append(claim.check(other, what, ratio(evidence, times, other, gradient_s)))
        cells[f"gradients of {gradient_s:g} s"] = judged(checks)
    longer = " and ".join(f"{ratio(evidence, 'longer', other, GRADIENTS_S[0]):.3g}" for other in OTHERS)
    return over_region(cells, claim.reason.format(longer=longer))


def ratio(evidence: Evidence, times: str, other: str, gradient_s: float) -> float:
    """Return the time of a sample of another method over that of HALoS."""
    run, reference = (evidence[f"{method}_{times}"].run(cluster__gradient_s=gradient_s) for method in (other, "halos"))
    return time_of_sample(run) / time_of_sample(reference)


def gains(evidence: Evidence) -> Figure:
    """Draw the ratios of times against the time of a gradient."""
    panels = []
    for other in OTHERS:
        algo, level = "diloco" if other == "synchronous" else "asyncdiloco", CLAIMS["D2"].threshold(other)
        lines = [
            line_of(times, algo, [(t, ratio(evidence, times, other, t)) for t in GRADIENTS_S], i)
            for i, times in enumerate(TIMES)
        ]
        axes = (f"{METHODS[other]}; line: {level:g}", "time of a gradient (s)", "time, over that of HALoS")
        panels.append(ChartPanel(*axes, lines, log_x=True, log_y=True, level=level))
    return chart(*panels)


PAPER = described("kim2025", Claim(CLAIMS["D2"], d2), charts={"gains": gains})
