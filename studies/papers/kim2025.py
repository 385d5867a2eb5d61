"""Kim et al. 2025: HALoS, asynchronous local SGD with a server in each region and a global one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsgd.record.reader import Run
from studies.papers import CLAIMS, described
from studies.reproduction.paper import Chart, Claim, Evidence, Study, listed
from studies.reproduction.verdict import Finding, exactly

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORKERS, REGIONS, STEPS = 16, 4, 2000
TAU, LONGER = 32, 64  # local steps of the fastest worker
MESSAGE_BYTES = 4 * 70.4e6  # Pythia-70M in fp32
GRADIENTS_S = (0.1, 0.3, 1.0, 3.0)
FASTEST, SLOWEST = 0.907, 0.107  # speeds
SPEEDS = [FASTEST - (FASTEST - SLOWEST) * i / (WORKERS - 1) for i in range(WORKERS)]
# every region has fast and slow workers, the fastest first: that of rank r is the (4 k + region)th
SLOW = {r: 1 / SPEEDS[REGIONS * (r % REGIONS) + r // REGIONS] for r in range(WORKERS)}
SLOWNESS = "{" + ", ".join(f"{rank}: {factor:.4g}" for rank, factor in SLOW.items()) + "}"
OTHERS = ("synchronous", "asynchronous")
METHODS = {"synchronous": "DiLoCo", "asynchronous": "asynchronous DiLoCo", "halos": "HALoS"}
TIMES = ("steady", "stragglers")


def d2(evidence: Evidence) -> Finding:
    """Compare the times of equal samples, at the time of a gradient at which HALoS gains most."""
    claim, checks, listed = CLAIMS["D2"], [], []
    for times in TIMES:
        for other in OTHERS:
            ratios = {t: ratio(evidence, times, other, t) for t in GRADIENTS_S}
            best = max(ratios, key=lambda t: ratios[t])
            what = f"{times}, gradients of {best:g} s: time of {METHODS[other]} over that of HALoS, equal samples"
            checks.append(claim.check(other, what, ratios[best]))
            each = ", ".join(f"{ratios[t]:.3g} at {t:g} s" for t in GRADIENTS_S)
            listed.append(f"{times}, {METHODS[other]}: {each}")
    longer = " and ".join(f"{ratio(evidence, 'longer', other, GRADIENTS_S[0]):.3g}" for other in OTHERS)
    reason = (
        f"By the time of a gradient ({GRADIENTS_S[0]:g} s is the shortest that was tried): {'; '.join(listed)}. "
        f"The slowest worker has {SLOWEST / FASTEST:.2f} of the fastest one's speed, and DiLoCo waits for it. The "
        "published ratios are of times to a loss, and so hold what a sample is worth to each method; these do not. It "
        f"passes with short rounds only: with {LONGER} local steps instead of {TAU}, steady gradients of "
        f"{GRADIENTS_S[0]:g} s, the ratios are {longer}."
    )
    return claim.judged(checks, reason)


def ratio(evidence: Evidence, times: str, other: str, gradient_s: float) -> float:
    """Return the time of a sample of another method over that of HALoS."""
    run, reference = (evidence[f"{method}_{times}"].run(cluster__gradient_s=gradient_s) for method in (other, "halos"))
    return _sample_s(run) / _sample_s(reference)


def gains(evidence: Evidence) -> Figure:
    """Draw the ratios of times against the time of a gradient."""
    from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart

    panels = []
    for other in OTHERS:
        lines = [
            ChartLine(times, "diloco" if other == "synchronous" else "asyncdiloco",
                      [(t, exactly(ratio(evidence, times, other, t))) for t in GRADIENTS_S], i)
            for i, times in enumerate(TIMES)
        ]  # fmt: skip
        level = CLAIMS["D2"].threshold(other)
        panels.append(
            ChartPanel(f"{METHODS[other]}; line: {level:g}", "time of a gradient (s)", "time, over that of HALoS",
                       lines, log_x=True, log_y=True, level=level)
        )  # fmt: skip
    return chart(panels)


def _sample_s(run: Run) -> float:
    return run.final("time_s") / run.final("samples")


def _study(method: str, times: str, tau: int, gradients_s: Sequence[float], *overrides: str) -> Study:
    jitter = ("cluster.jitter=0.144", "cluster.jitter_distribution=lognormal", "cluster.jitter_skew=1.02")
    return Study(
        f"{method}_{times}",
        (*overrides, f"algo.tau={tau}", f"nodes={WORKERS}", "engine=sim", "engine.gradients=none", "cluster=halos",
         f"cluster.slow_nodes={SLOWNESS}", f"cluster.message_bytes={MESSAGE_BYTES:.0f}",
         f"cluster.gradient_s={listed(gradients_s)}", *(jitter if times == "stragglers" else ()),
         "budget.epochs=null", f"budget.steps={STEPS}", "eval.every_epochs=null"),
    )  # fmt: skip


def _studies(times: str, tau: int = TAU, gradients_s: Sequence[float] = GRADIENTS_S) -> tuple[Study, ...]:
    asynchronous = ("algo=asyncdiloco", "algo.slow_nodes=${cluster.slow_nodes}")
    return (
        _study("synchronous", times, tau, gradients_s, "algo=diloco"),
        _study("asynchronous", times, tau, gradients_s, *asynchronous),
        _study("halos", times, tau, gradients_s, *asynchronous, f"algo.group={WORKERS // REGIONS}"),
    )


STUDIES = (*(study for times in TIMES for study in _studies(times)), *_studies("longer", LONGER, GRADIENTS_S[:1]))

PAPER = described(
    "kim2025",
    studies=STUDIES,
    claims=(Claim(CLAIMS["D2"], tuple(study.name for study in STUDIES), d2),),
    charts=(
        Chart(
            "gains",
            "Time of equal samples over that of HALoS, against the time of a gradient",
            tuple(study.name for study in STUDIES),
            gains,
        ),
    ),
)
