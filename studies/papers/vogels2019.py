"""Vogels et al. 2019: PowerSGD, gradients of low rank."""

from __future__ import annotations

from itertools import pairwise
from math import log

from matplotlib.figure import Figure

from studies.evidence.claim import Cells, claim_over_conditions
from studies.evidence.contrast import Contrast, accuracy_at_end
from studies.evidence.paired_t import difference
from studies.papers import CLAIMS, described, read_studies
from studies.reproduction.chart_panels import ChartPanel, chart, line_of
from studies.reproduction.logged import time_of_step
from studies.reproduction.paper import Claim, Evidence
from studies.reproduction.verdict import Finding

CLAIMED = 2  # rank
P, GRADIENT_S, LATENCY_S = 8, 0.2, 5e-5  # nodes; seconds
CODE_S = 0.23 * GRADIENT_S  # rank 2, as benchmarks/codes.py measured it: 0.23 of a gradient of ResNet-8
DENSE = 44_722_464  # bytes of ResNet-18 with 10 classes
BANDWIDTHS = read_studies("vogels2019")["dense"].numbers("cluster.bandwidth")
EQUAL = round(2 * (P - 1) / P * 8 * DENSE / (GRADIENT_S - 2 * (P - 1) * LATENCY_S))  # bit/s at which T = t
ONE_RING_S = 2 * (P - 1) * LATENCY_S  # of latency


def accuracies(task: str) -> Cells:
    """Compare the accuracy of PowerSGD with that of all-reduce, over the number of steps."""

    def after(part: int) -> list[Contrast]:
        low_rank, exact = (accuracy_at_end(task, P, name, part) for name in (f"compressed rank={CLAIMED}", "sync"))
        what = f"rank {CLAIMED}: test accuracy of PowerSGD minus that of all-reduce"
        return [Contrast("accuracy", what, low_rank, exact, difference)]

    parts = {"a 16th of the": 16, "a quarter of the": 4, "all": 1}
    return {f"{name} steps": after(part) for name, part in parts.items()}


def b11b(evidence: Evidence) -> Finding:
    """Find the bandwidth from which all-reduce is as fast, and what PowerSGD gains where it takes a gradient."""
    claim = CLAIMS["B11b"]
    crossing = bandwidth_of_equal_time(evidence)
    checks = [
        claim.check("crossing", "bandwidth of equal times (Gbit/s)", crossing / 1e9, expected_crossing(evidence) / 1e9),
        claim.check("speed", "where T = t: times as fast as all-reduce", speed_up(evidence, EQUAL)),
    ]
    return claim.judged(checks)


def speed_up(evidence: Evidence, bandwidth: float) -> float:
    """Return the time of a step of all-reduce over that of PowerSGD."""
    dense, low_rank = (evidence[name].run(cluster__bandwidth=bandwidth) for name in ("dense", "low_rank"))
    return time_of_step(dense) / time_of_step(low_rank)


def bandwidth_of_equal_time(evidence: Evidence) -> float:
    """Return where the ratio of step times falls below 1, between two bandwidths, on logarithmic axes."""
    points = [(bandwidth, log(speed_up(evidence, bandwidth))) for bandwidth in BANDWIDTHS]
    for (slow, above), (fast, below) in pairwise(points):
        if above >= 0 > below:
            return slow * (fast / slow) ** (above / (above - below))
    return float("nan")


def expected_crossing(evidence: Evidence) -> float:
    """Return where T(N) = T_c + T(p) + T(q): the bytes that are spared take as long as coding and one more ring."""
    run = evidence["low_rank"].runs[0]
    sent = 2 * (P - 1) / P * DENSE - run.final("bytes_sent_max_node") / run.final("steps")
    return 8 * sent / (CODE_S + ONE_RING_S)


def speed(evidence: Evidence) -> Figure:
    """Draw how many times as fast a step is as with all-reduce."""
    faster = line_of("PowerSGD", "compressed", [(each / 1e9, speed_up(evidence, each)) for each in BANDWIDTHS])
    axes = ("bandwidth (Gbit/s)", "times as fast as all-reduce")
    return chart(ChartPanel("rank 2, ResNet-18, 8 nodes", *axes, [faster], log_x=True, level=1.0))


PAPER = described(
    "vogels2019",
    claim_over_conditions(CLAIMS["B11a"], accuracies),
    Claim(CLAIMS["B11b"], b11b),
    charts={"speed": speed},
)
