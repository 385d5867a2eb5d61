"""Douillard et al. 2025: streaming DiLoCo, whose averages are late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsgd.report.interval import estimate
from studies.papers import CLAIMS
from studies.reproduction.paired import ratio, scores
from studies.reproduction.paper import Assumption, Chart, Claim, Evidence, Paper, newer_small
from studies.reproduction.verdict import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORKERS, TAU, FRAGMENTS, SEEDS = 4, 30, 2, 10
DELAYS = (1, 5, 10)
WAYS = [{"algo": "streaming", "algo.tau": TAU, "algo.fragments": FRAGMENTS, "algo.delay": d} for d in (0, *DELAYS)]
CONTENDERS = ", ".join(f"{{algo.delay: {delay}}}" for delay in (0, *DELAYS))


def d4(evidence: Evidence) -> Finding:
    """Compare the losses at the end with those without delay, each with the rate that suits it."""
    claim, logged = CLAIMS["D4"], evidence["delays"]
    exact = logged.contender(algo__delay=0)
    ratios = {delay: ratio(logged.contender(algo__delay=delay), exact) for delay in DELAYS}
    checks = [claim.check("loss", f"delay of {delay}: test loss over that without", ratios[delay]) for delay in DELAYS]
    return claim.judged(checks, "All workers have the same delay. Unequal ones, which the paper has, are not tested.")


def losses(evidence: Evidence) -> Figure:
    """Draw the loss at the end against the delay."""
    from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart

    each = {delay: evidence["delays"].contender(algo__delay=delay) for delay in (0, *DELAYS)}
    points = [(float(delay), estimate(scores(contender))) for delay, contender in each.items()]
    line = ChartLine("streaming DiLoCo", "streaming", points)
    return chart([ChartPanel("each tuned", "delay (steps)", "test loss at the end", [line])])


PAPER = Paper(
    key="douillard2025",
    order=19,
    title="Streaming DiLoCo with overlapping communication",
    reference="Douillard et al. 2025, arXiv 2501.18512",
    summary=(
        "DiLoCo's average travels in fragments, while the workers go on for some steps. The paper finds that a delay "
        "of up to 10 steps costs next to nothing. H, the local steps of a round, is `algo.tau`."
    ),
    assumptions=(
        Assumption("H, delays", f"{TAU}; {', '.join(map(str, DELAYS))} steps", "unconfirmed"),
        Assumption("fragments", f"{FRAGMENTS}, so that the longest delay fits", "ours"),
        Assumption("share of its parameters that a worker keeps", "0.5", "published"),
        Assumption("outer optimiser", "Nesterov's momentum, 0.9; rate 0.7", "published"),
        Assumption("local steps", "SGD with momentum 0.9 instead of AdamW; the rate is tuned", "ours"),
        Assumption("what is trained", f"an MLP on generated images of 8 x 8 pixels, {WORKERS} workers, batch 16 each, "
                   "10 epochs", "ours"),
    ),
    studies=(
        newer_small(
            "delays", "algo=streaming", f"algo.tau={TAU}", f"algo.fragments={FRAGMENTS}",
            f"compare.contenders=[{CONTENDERS}]", f"nodes={WORKERS}", f"compare.seeds={SEEDS}",
        ),
    ),
    claims=(Claim(CLAIMS["D4"], ("delays",), d4),),
    charts=(Chart("losses", "Test loss at the end against the delay of the average", ("delays",), losses),),
)  # fmt: skip
