"""Kale et al. 2025: DiLoCo whose average travels during the next round, with delayed or with eager outer steps."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.figure import Figure

from studies.evidence.claim import claim_on_tasks
from studies.evidence.contrast import Contrast, Measure, loss_at_end
from studies.papers import CLAIMS, described, read_studies
from studies.reproduction.chart_panels import ChartPanel, chart, line_of
from studies.reproduction.paper import Claim, Evidence
from studies.reproduction.verdict import Finding, judged

COMPUTE_H = 0.67  # hours of computing alone
H, FRAGMENTS, BITS, DENSE_BITS = 100, 8, 4, 16
T_RATIO = 161.7  # of the all-reduce without codes over a gradient: what makes 109 hours of 0.67
PUBLISHED = 1e9  # bit/s
GRADIENT_S = 1e9 * DENSE_BITS / PUBLISHED / T_RATIO  # of 1e9 parameters, with two workers
BANDWIDTHS = read_studies("kale2025")["eager"].numbers("cluster.bandwidth")
NEAR = (0.3, 1.0, 3.0, 10.0)  # Gbit/s, of a panel of its own
WORKERS, SHORT, LONG = 4, 5, 50  # of B9: and its local steps
# three for each, below the largest that is stable with 4 workers: 1.36, 0.42 and 0.25
OUTER_RATES = {"none": (0.35, 0.7, 1.0), "eager": (0.0875, 0.175, 0.35), "delayed": (0.04375, 0.0875, 0.175)}


def b8(evidence: Evidence) -> Finding:
    """Compare the hours of training with those published, at one bandwidth."""
    claim, step = CLAIMS["B8"], hours(evidence, "delay_1", PUBLISHED)
    checks = [claim.check("step", "streaming, one step of overlap (hours)", step)]
    studies = ("data_parallel", "delay_0", "delay_11", "delayed", "eager")
    others = {study: hours(evidence, study, PUBLISHED) for study in studies}
    full = COMPUTE_H * (1 + FRAGMENTS * (T_RATIO * BITS / 32 / FRAGMENTS - 1) / H)
    return judged(checks, claim.reason.format(full=full, **others))


def hours(evidence: Evidence, study: str, bandwidth: float) -> float:
    """Return the hours of a training that takes COMPUTE_H without communication."""
    run = evidence[study].run(cluster__bandwidth=bandwidth)
    return COMPUTE_H * run.final("time_s") / run.final("steps") / GRADIENT_S


def times(evidence: Evidence) -> Figure:
    """Draw the hours of training against the bandwidth."""
    named = (
        ("data parallel", "sync", "data_parallel"),
        ("streaming, no overlap", "streaming", "delay_0"),
        ("streaming, overlap of a step", "streaming", "delay_1"),
        ("DiLoCo, overlap of a round", "diloco", "eager"),
    )
    lines = [
        line_of(name, algo, [(b / 1e9, hours(evidence, study, b)) for b in BANDWIDTHS], i)
        for i, (name, algo, study) in enumerate(named)
    ]
    near = [replace(line, points=[at for at in line.points if at[0] in NEAR]) for line in lines[1:]]
    axis = "bandwidth (Gbit/s)"
    return chart(
        ChartPanel("line: computing alone", axis, "hours", lines, log_x=True, log_y=True, level=COMPUTE_H),
        ChartPanel("without data parallel", axis, "hours", near, log_x=True, level=COMPUTE_H),
    )


def late(task: str) -> list[Contrast]:
    """Compare the loss at the end with that of DiLoCo without overlap, outer rates tuned, over the local steps."""

    def end(overlap: str, tau: int) -> Measure:
        names = (f"diloco overlap={overlap} tau={tau} olr={olr:g}" for olr in OUTER_RATES[overlap])
        return loss_at_end(task, WORKERS, *names)

    checks = []
    for tau in (SHORT, LONG):
        what = f"H = {tau}: test loss over that without overlap, {{}}"
        exact = end("none", tau)
        checks.append(Contrast("eager", what.format("eager"), end("eager", tau), exact))
        if tau == LONG:
            checks.append(Contrast("delayed", what.format("delayed"), end("delayed", tau), exact))
    return checks


PAPER = described("kale2025", Claim(CLAIMS["B8"], b8), claim_on_tasks(CLAIMS["B9"], late), charts={"times": times})
