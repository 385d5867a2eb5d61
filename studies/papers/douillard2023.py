"""Douillard et al. 2023: DiLoCo, hundreds of local steps between two averages."""

from __future__ import annotations

from collections.abc import Mapping

from studies.evidence.claim import claim_on_tasks
from studies.evidence.contrast import Contrast, loss_at_end
from studies.evidence.tasks import IMAGES
from studies.papers import CLAIMS, described
from studies.papers.zhang2015.stability import growth_per_step
from studies.reproduction.paper import Claim, Evidence
from studies.reproduction.verdict import Finding

CLAIMED, WORKERS, FEW = 50, 8, 4  # local steps of B7; workers of B7 and of D5
OUTER_RATES = (0.35, 0.7)
LEVELS: Mapping[str, int] = {"text": -8}  # of the rate that is tried first: of AdamW, and of SGD on images
OLR = 0.7  # published
SHORT, LONG, BETA = 1, 50, 0.9


def rounds(task: str) -> list[Contrast]:
    """Compare the loss at the end with that of all-reduce, at equal samples."""
    variants = (f"diloco tau={CLAIMED} olr={olr:g}" for olr in OUTER_RATES)
    late, exact = (loss_at_end(task, WORKERS, *names, level=LEVELS.get(task, 0)) for names in (variants, ["sync"]))
    return [Contrast("loss", f"H = {CLAIMED}: test loss of DiLoCo over test loss of all-reduce", late, exact)]


def momentum(task: str) -> list[Contrast]:
    """Compare the losses at the end with and without outer momentum, in short and in long rounds."""

    def with_over_without(name: str, tau: int) -> Contrast:
        slow, plain = (loss_at_end(task, FEW, f"diloco tau={tau} beta={beta:g}") for beta in (BETA, 0))
        what = f"H = {tau}: test loss with an outer momentum of {BETA:g} over that without"
        return Contrast(name, what, slow, plain)

    return [with_over_without("short", SHORT), with_over_without("long", LONG)]


def d3(evidence: Evidence) -> Finding:
    """Compare what a round removes of an error, over what its local steps do, with the effective outer rate."""
    claim, checks = CLAIMS["D3"], []
    for name in claim.studies:
        (run,) = evidence[name].runs
        beta, tau = run.setting("algo.beta"), run.setting("algo.tau")
        left = growth_per_step(run) ** tau  # of the error, and of a difference
        expected = OLR * (1 + beta / (1 - beta / left))
        what = f"mu = {beta:g}, H = {tau}: effective outer rate"
        checks.append(claim.check("rate", what, (1 - left) / removed(beta), expected))
    return claim.judged(checks)


def removed(beta: float) -> float:
    """Return the share of an error that the local steps of a round remove: half of what makes it swing."""
    return (1 - 4 * beta / (1 + beta) ** 2) / (2 * OLR)


PAPER = described(
    "douillard2023",
    claim_on_tasks(CLAIMS["B7"], rounds, ("text", *IMAGES)),
    Claim(CLAIMS["D3"], d3),
    claim_on_tasks(CLAIMS["D5"], momentum),
)
