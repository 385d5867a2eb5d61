"""Wang et al. 2020: SlowMo, momentum over rounds of local SGD."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dsgd.record.reader import number
from dsgd.report.contest import Contender
from dsgd.report.interval import Estimate, estimate
from dsgd.report.ratio import paired_ratio
from studies.papers import CLAIMS
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Assumption, Chart, Claim, Evidence, Paper, listed, newer_small
from studies.reproduction.verdict import Finding, holds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NODES = (2, 4, 8, 16)
BETAS = (0.0, 0.2, 0.4, 0.6, 0.8)
TAU = 12


def b6(evidence: Evidence) -> Finding:
    """Compare the training loss at the end with that without slow momentum, and find the best momentum for each p."""
    claim = CLAIMS["B6"]
    logged = evidence["slow_momentum"]
    best = {p: best_beta(logged, p) for p in NODES}
    last = NODES[-1]
    ordered = all(best[few] <= best[many] for few, many in pairwise(NODES))
    grows = ordered and best[last] > best[NODES[0]]
    what = f"p = {last}: training loss with the best momentum, {best[last]:g}, over that without"
    checks = [
        claim.check("loss", what, loss_ratio(logged, last, best[last])),
        holds(f"best momentum with {last} workers minus that with {NODES[0]}", best[last] - best[NODES[0]],
              "> 0, and never less with more workers", grows),
    ]  # fmt: skip
    text = ", ".join(f"{best[p]:g} with {p}" for p in NODES)
    reason = f"The best momenta: {text} workers, each with its own rate; the best of five is the one that ends lowest."
    return claim.judged(checks, reason)


def of_beta(logged: Logged, p: int, beta: float) -> Contender:
    """Return the contender with so much slow momentum."""
    return logged.contender(nodes=p, algo__beta=beta)


def losses(contender: Contender) -> list[float]:
    """Return the training losses at the end, by seed; infinite where a run did not complete."""
    return [number(run.final("train_loss")) if run.outcome == "completed" else np.inf for run in contender.runs]


def best_beta(logged: Logged, p: int) -> float:
    """Return the slow momentum with the lowest median loss at the end."""
    return min(BETAS, key=lambda beta: float(np.median(losses(of_beta(logged, p, beta)))))


def loss_ratio(logged: Logged, p: int, beta: float) -> Estimate:
    """Return the training losses at the end over those without slow momentum."""
    return paired_ratio(losses(of_beta(logged, p, beta)), losses(of_beta(logged, p, BETAS[0])))


def momenta(evidence: Evidence) -> Figure:
    """Draw the training loss at the end against the slow momentum."""
    from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart

    logged = evidence["slow_momentum"]
    lines = [
        ChartLine(f"{p} workers", "diloco", [(b, estimate(losses(of_beta(logged, p, b)))) for b in BETAS], i)
        for i, p in enumerate(NODES)
    ]
    return chart([ChartPanel("tau = 12, each tuned", "slow momentum", "training loss at the end", lines)])


PAPER = Paper(
    key="wang2020",
    order=13,
    title="SlowMo: improving communication-efficient distributed SGD with slow momentum",
    reference="Wang, Tantia, Ballas, Rabbat 2020, arXiv 1910.00643; the guide of fairscale",
    summary=(
        "What a round of local steps has moved is taken for a gradient, of which an outer optimiser keeps a momentum. "
        "It costs no message. The guide of a library that has it recommends more of it the more workers there are."
    ),
    assumptions=(
        Assumption("slow learning rate", "1", "published"),
        Assumption("period", f"{TAU}", "published"),
        Assumption("momentum of the local steps", "0.9, kept over rounds; Nesterov", "published"),
        Assumption("what is trained", "an MLP on generated images of 8 x 8 pixels, batch 16, 10 epochs", "ours"),
    ),
    studies=(
        newer_small(
            "slow_momentum", "algo=diloco", "algo.outer=slowmo", "algo.olr=1", f"algo.tau={TAU}",
            f"algo.beta={listed(BETAS)}", f"nodes={listed(NODES)}",
        ),
    ),
    claims=(
        Claim(CLAIMS["B6"], ("slow_momentum",), b6),
    ),
    charts=(
        Chart("momenta", "Training loss at the end against the slow momentum, by the number of workers",
              ("slow_momentum",), momenta),
    ),
)  # fmt: skip
