"""Lian et al. 2018: AD-PSGD, decentralised averaging that waits for nobody."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from matplotlib.figure import Figure

from dsgd.report.interval import Estimate
from studies.evidence.claim import Cells, claim_over_conditions
from studies.evidence.contrast import Contrast, samples, seconds
from studies.evidence.levels import drawn_over_levels, over_levels
from studies.evidence.pipeline import Candidate, Pipelines
from studies.evidence.tasks import TARGETS
from studies.papers import CLAIMS, described, read_studies
from studies.papers.jin2016.contenders import cells
from studies.reproduction.chart_panels import FORMULA, ChartLine, ChartPanel, chart, line_of
from studies.reproduction.logged import time_of_sample
from studies.reproduction.paper import Claim, Evidence
from studies.reproduction.verdict import Finding, judged, over_region

MESSAGE, GRADIENT_S, LATENCY_S = 102_228_128, 0.23, 5e-5  # ResNet-50: bytes, seconds of a mini-batch; seconds
PAIRS = read_studies("lian2018")["pairs"]
BANDWIDTHS, NODES = PAIRS.numbers("cluster.bandwidth"), PAIRS.numbers("nodes")
OFTEN = CLAIMS["B2"].threshold("often")  # averages per gradient
LESS_OFTEN = 0.2
WORKERS, FACTORS, JITTER, SLOWED = 8, (4, 10), 0.1, (1e9, 1e10)  # of B1: by which one worker is slower; bit/s
AT_BOUND = 2_380_000_000  # bit/s, where AD-PSGD averages just often enough


def b2(evidence: Evidence) -> Finding:
    """Compare the time of an epoch with 1 + T / t of a ring all-reduce, and count AD-PSGD's averages per gradient."""
    claim = CLAIMS["B2"]
    often = {(bandwidth, p): averages(evidence, bandwidth, p) for bandwidth in BANDWIDTHS for p in NODES}
    form = f"{len(BANDWIDTHS)} bandwidths: ratio of epoch times, ring all-reduce over AD-PSGD, from 1 + T / t, relative"
    what = f"largest ratio where AD-PSGD averages at least {OFTEN} times per gradient"
    cells = {}
    for p in NODES:
        apart = max(abs(epoch_ratio(evidence, each, p) / ring_ratio(each, p) - 1) for each in BANDWIDTHS)
        checks = [claim.check("form", form, apart), claim.check("ratio", what, ratio_where_often(evidence, often, p))]
        cells[f"{p} nodes"] = judged(checks)
    return over_region(cells, _limits(evidence, often))


def _limits(evidence: Evidence, often: Mapping[tuple[int, int], float]) -> str:
    """Say by what the bound comes about, and what B2 would come to with another bound or a faster all-reduce."""
    slow, many = (BANDWIDTHS[-1], NODES[0]), NODES[-1]
    best = max(epoch_ratio(evidence, *point, collective="best") for point in often)
    fastest = ratio_where_often(evidence, often, many, collective="best")
    (late,) = evidence["overlapping"].runs
    overlapping = time_of_sample(late) / time_of_sample(evidence["pairs"].run(nodes=many, cluster__bandwidth=AT_BOUND))
    least = CLAIMS["B2"].threshold("ratio")
    seldom = [str(p) for p in NODES if ratio_where_often(evidence, often, p, LESS_OFTEN).low >= least]
    return CLAIMS["B2"].reason.format(
        slowest=epoch_ratio(evidence, *slow), often=often[slow], best=best, fastest=fastest.low,
        overlapping=overlapping, less_often=LESS_OFTEN, seldom=", ".join(seldom),
    )  # fmt: skip


def ratio_where_often(
    evidence: Evidence, often: Mapping[tuple[int, int], float], p: int, bound: float = OFTEN, collective: str = "ring"
) -> Estimate:
    """Return the largest ratio of epoch times on p nodes where AD-PSGD averages often enough. It is between two
    bandwidths: the last at which it does and the first at which it does not. The median is unknown."""
    fast, slow = (
        [epoch_ratio(evidence, each, p, collective) for each in BANDWIDTHS if (often[each, p] >= bound) == enough]
        for enough in (True, False)
    )
    return Estimate(math.nan, max(fast), min(slow), 1)


def averages(evidence: Evidence, bandwidth: float, p: int) -> float:
    """Return how many averages a worker has taken part in, per gradient: it sends a vector for each."""
    run = evidence["pairs"].run(nodes=p, cluster__bandwidth=bandwidth)
    return run.final("bytes_sent_total") / MESSAGE / (run.final("samples") / run.setting("batch_size"))


def epoch_ratio(evidence: Evidence, bandwidth: float, p: int, collective: str = "ring") -> float:
    """Return how many times as long all-reduce takes for the same samples."""
    exact = evidence["all_reduce"].run(nodes=p, cluster__bandwidth=bandwidth, cluster__collective=collective)
    return time_of_sample(exact) / time_of_sample(evidence["pairs"].run(nodes=p, cluster__bandwidth=bandwidth))


def ring_ratio(bandwidth: float, p: int) -> float:
    """Return 1 + T / t, T = 2 (p - 1) (a + N / (p B)) of an all-reduce around a ring."""
    return 1 + 2 * (p - 1) * (LATENCY_S + 8 * MESSAGE / (p * bandwidth)) / GRADIENT_S


def beside_a_slow_worker(task: str) -> Cells:
    """Compare time and samples to the target of all-reduce and AD-PSGD beside one slow worker, over the bandwidth."""

    def checks(bandwidth: float) -> list[Contrast]:
        made = []
        for factor in FACTORS:
            exact, late = _both(task, bandwidth, factor)
            what = f"one worker {factor} times slower: {{}} to the target, {{}}"
            if factor == FACTORS[0]:
                waiting, going_on = (seconds([each], TARGETS[task], jitter=JITTER) for each in (exact, late))
                made.append(Contrast("time", what.format("time", "all-reduce over AD-PSGD"), waiting, going_on))
            more, fewer = (samples(each, TARGETS[task]) for each in (late, exact))
            made.append(Contrast("samples", what.format("samples", "AD-PSGD over all-reduce"), more, fewer))
        return made

    return {f"{bandwidth / 1e9:g} Gbit/s": checks(bandwidth) for bandwidth in SLOWED}


def _both(task: str, bandwidth: float, factor: int) -> tuple[Candidate, Candidate]:
    """Return all-reduce and AD-PSGD beside a worker that is so much slower."""
    condition = f"cluster.bandwidth={bandwidth:g} cluster.slow_nodes={{{WORKERS - 1}:{factor}.0}}"
    exact = replace(cells(task, WORKERS, "sync")[0], network=condition)
    return exact, Candidate(task, f"adpsgd {condition}", WORKERS, exact.first)


def over_loss(pipelines: Pipelines) -> Figure | None:
    """Draw the samples of AD-PSGD over those of all-reduce, from early to late losses, a panel for each task."""

    def lines(task: str) -> list[ChartLine]:
        pairs = ((bandwidth, *_both(task, bandwidth, FACTORS[0])) for bandwidth in SLOWED)
        return [
            ChartLine(f"{bandwidth / 1e9:g} Gbit/s", "adpsgd", over_levels(late, exact, pipelines), variant)
            for variant, (bandwidth, exact, late) in enumerate(pairs)
        ]

    title = f"a worker {FACTORS[0]} times slower"
    return drawn_over_levels(title, "samples over those of all-reduce", lines, level=1.0)


def epochs(evidence: Evidence) -> Figure:
    """Draw the ratio of epoch times against the bandwidth, and how often AD-PSGD averages there."""
    places = [(bandwidth, bandwidth / 1e9) for bandwidth in sorted(BANDWIDTHS)]
    p, least = NODES[-1], CLAIMS["B2"].threshold("ratio")
    faster = [
        line_of(f"over {name} all-reduce", "adpsgd", [(x, epoch_ratio(evidence, b, p, name)) for b, x in places], i)
        for i, name in enumerate(("ring", "best"))
    ]
    faster.append(line_of("1 + T / t", FORMULA, [(x, ring_ratio(b, p)) for b, x in places]))
    often = [line_of("AD-PSGD", "adpsgd", [(x, averages(evidence, b, p)) for b, x in places])]
    axis = "bandwidth (Gbit/s)"
    return chart(
        ChartPanel(f"{p} nodes; line: threshold", axis, "times as fast as all-reduce", faster, log_x=True, level=least),
        ChartPanel(f"{p} nodes; line: often enough", axis, "averages per gradient", often, log_x=True, level=OFTEN),
    )


PAPER = described(
    "lian2018",
    claim_over_conditions(CLAIMS["B1"], beside_a_slow_worker),
    Claim(CLAIMS["B2"], b2),
    charts={"levels": over_loss, "epochs": epochs},
)
