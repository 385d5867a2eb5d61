"""Assran et al. 2019: SGP, stochastic gradient push, and its overlapped form."""

from __future__ import annotations

from matplotlib.figure import Figure

from studies.evidence.claim import claim_on_tasks
from studies.evidence.contrast import Contrast, accuracy_at_end
from studies.evidence.paired_t import difference
from studies.papers import CLAIMS, described, read_studies
from studies.reproduction.chart_panels import ChartPanel, chart, line_of
from studies.reproduction.logged import time_of_step
from studies.reproduction.paper import Claim, Evidence
from studies.reproduction.verdict import Finding

BANDWIDTH = 1e10  # bit/s
BANDWIDTHS = read_studies("assran2019")["push"].numbers("cluster.bandwidth")
WORKERS = 16  # of B4
HOURS, STEPS_OF_90 = 1.6, 14_075  # of 90 epochs with SGP on 32 nodes
GRADIENT_S = HOURS * 3600 / STEPS_OF_90 - 5e-5 - 8 * 102e6 / BANDWIDTH  # less the time of a message of ResNet-50


def b3(evidence: Evidence) -> Finding:
    """Compare the time of a step on 32 nodes with that of all-reduce."""
    claim = CLAIMS["B3"]
    what = "ring all-reduce over SGP, times of a step"
    ratio = _step_s(evidence, BANDWIDTH) / _step_s(evidence, BANDWIDTH, 0)
    checks = [claim.check("steps", f"{what}, 10 Gbit/s", ratio)]
    return claim.judged(checks, gradient_s=GRADIENT_S)


def accuracies(task: str) -> list[Contrast]:
    """Compare the accuracy of SGP with that of all-reduce, and with overlap against without."""
    push = "sgp topology=one_peer_exponential overlap="
    exact, plain, late = (accuracy_at_end(task, WORKERS, name) for name in ("sync", f"{push}0", f"{push}1"))
    return [
        Contrast("accuracy", "test accuracy, SGP minus all-reduce", plain, exact, difference),
        Contrast("overlap", "test accuracy, SGP with an overlap of 1 minus SGP", late, plain, difference),
    ]


def steps(evidence: Evidence) -> Figure:
    """Draw the time of a step against the bandwidth."""
    named = (("ring all-reduce", "sync", None), ("SGP", "sgp", 0), ("SGP, overlap 1", "sgp", 1))
    lines = [
        line_of(name, algo, [(b / 1e9, _step_s(evidence, b, overlap)) for b in BANDWIDTHS], i)
        for i, (name, algo, overlap) in enumerate(named)
    ]
    title = "32 nodes, ResNet-50"
    return chart(ChartPanel(title, "bandwidth (Gbit/s)", "time of a step (virtual s)", lines, log_x=True))


def _step_s(evidence: Evidence, bandwidth: float, overlap: int | None = None) -> float:
    """Return the seconds of a step; overlap: of SGP; None: of all-reduce."""
    if overlap is None:
        run = evidence["all_reduce"].run(cluster__bandwidth=bandwidth)
    else:
        run = evidence["push"].run(cluster__bandwidth=bandwidth, algo__overlap=overlap)
    return time_of_step(run)


PAPER = described(
    "assran2019", Claim(CLAIMS["B3"], b3), claim_on_tasks(CLAIMS["B4"], accuracies), charts={"steps": steps}
)
