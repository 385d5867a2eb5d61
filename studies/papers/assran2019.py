"""Assran et al. 2019: SGP, stochastic gradient push, and its overlapped form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from studies.evidence.claim import claim_on_tasks
from studies.evidence.contrast import Contrast, accuracy
from studies.evidence.paired_t import difference
from studies.evidence.pipeline import Candidate
from studies.evidence.tasks import MOST_TESTED, STEPS, contender
from studies.papers import CLAIMS, described
from studies.reproduction.paper import Chart, Claim, Evidence, Study, listed
from studies.reproduction.verdict import Finding, exactly

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MESSAGE, BANDWIDTH, LATENCY_S, P = 102e6, 1e10, 5e-5, 32  # ResNet-50: bytes; bit/s; seconds; nodes
WORKERS = 16  # of B4
HOURS, STEPS_OF_90 = 1.6, 14_075  # of 90 epochs with SGP on 32 nodes
GRADIENT_S = HOURS * 3600 / STEPS_OF_90 - LATENCY_S - 8 * MESSAGE / BANDWIDTH
EFFECTIVE = 1.7e9  # bit/s, at which a ring all-reduce makes the published 5 hours
BANDWIDTHS = (EFFECTIVE, 2.5e9, 5e9, BANDWIDTH, 4e10)


def b3(evidence: Evidence) -> Finding:
    """Compare the time of a step on 32 nodes with that of all-reduce."""
    claim = CLAIMS["B3"]
    what = "ring all-reduce over SGP, times of a step"
    checks = [claim.check("steps", f"{what}, 10 Gbit/s", _ratio(evidence, BANDWIDTH))]
    reason = (
        f"SGP's gradient takes {GRADIENT_S:.3f} s: {HOURS} hours over {STEPS_OF_90:,} steps, less the time of a "
        f"message. To take five hours an all-reduce would have to use {EFFECTIVE / 1e9:g} of the 10 Gbit/s. Whether "
        "the paper's did, nothing here shows: that bandwidth is computed from the five hours."
    )
    return claim.judged(checks, reason)


def accuracies(task: str) -> list[Contrast]:
    """Compare the accuracy of SGP with that of all-reduce, and with overlap against without."""
    push = "sgp topology=one_peer_exponential overlap="
    exact, plain, late = (
        accuracy([Candidate(task, contender(name, MOST_TESTED[task]), WORKERS)], STEPS[task])
        for name in ("sync", f"{push}0", f"{push}1")
    )
    return [
        Contrast("accuracy", "test accuracy, SGP minus all-reduce", plain, exact, difference),
        Contrast("overlap", "test accuracy, SGP with an overlap of 1 minus SGP", late, plain, difference),
    ]


def steps(evidence: Evidence) -> Figure:
    """Draw the time of a step against the bandwidth."""
    from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart

    lines = [
        ChartLine(name, algo, [(b / 1e9, exactly(_step_s(evidence, b, overlap))) for b in BANDWIDTHS], i)
        for i, (name, algo, overlap) in enumerate(
            (("ring all-reduce", "sync", None), ("SGP", "sgp", 0), ("SGP, overlap 1", "sgp", 1))
        )
    ]
    title = "32 nodes, ResNet-50"
    return chart([ChartPanel(title, "bandwidth (Gbit/s)", "time of a step (virtual s)", lines, log_x=True)])


def _ratio(evidence: Evidence, bandwidth: float) -> float:
    """Return the step time of all-reduce at this bandwidth over that of SGP with the whole one."""
    return _step_s(evidence, bandwidth) / _step_s(evidence, BANDWIDTH, 0)


def _step_s(evidence: Evidence, bandwidth: float, overlap: int | None = None) -> float:
    """Return the seconds of a step; overlap: of SGP; None: of all-reduce."""
    if overlap is None:
        run = evidence["all_reduce"].run(cluster__bandwidth=bandwidth)
    else:
        run = evidence["push"].run(cluster__bandwidth=bandwidth, algo__overlap=overlap)
    return run.final("time_s") / run.final("steps")


def _timing(*overrides: str) -> tuple[str, ...]:
    return (
        *overrides, f"nodes={P}", "engine=sim", "engine.gradients=none", "cluster=goyal2017",
        f"cluster.gradient_s={GRADIENT_S:.9g}", f"cluster.message_bytes={MESSAGE:.0f}",
        f"cluster.bandwidth={listed(BANDWIDTHS)}", f"cluster.latency_s={LATENCY_S:g}",
        "budget.epochs=null", "budget.steps=100",
    )  # fmt: skip


PAPER = described(
    "assran2019",
    studies=(
        Study("all_reduce", _timing("algo=sync", "algo.overlap=false", "cluster.collective=ring")),
        Study("push", _timing("algo=sgp", "algo.overlap=0,1", "topology=one_peer_exponential")),
    ),
    claims=(
        Claim(CLAIMS["B3"], ("all_reduce", "push"), b3),
        claim_on_tasks(CLAIMS["B4"], accuracies),
    ),
    charts=(Chart("steps", "Time of a step against the bandwidth", ("all_reduce", "push"), steps),),
)
