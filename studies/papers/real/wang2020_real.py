"""SlowMo at the real scale: what slow momentum gains, with few and with many workers."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from dsgd.report.contest import Contender
from studies.papers.real.tasks import COSINE_ON_BOTH_TASKS, NULL, TASKS, ending, stated
from studies.reproduction.fair import Null, loss_growth, loss_ratio
from studies.reproduction.logged import Logged
from studies.reproduction.paired import scores
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, listed, named
from studies.reproduction.verdict import Finding, nearness_below

FEW, MANY = 2, 16  # workers
TAU = 12
BETAS = (0.0, 0.4, 0.8)
MOMENTA = listed(BETAS).replace(",", ", ")
SLOWMO = {"algo": "diloco", "algo.outer": "slowmo", "algo.olr": 1, "algo.tau": TAU}
CHECKS = len(BETAS)  # two momenta, and the growth of what the larger one gains


def b6(evidence: Evidence) -> Finding:
    """Compare the losses at the end with and without slow momentum, and its gains with few and with many workers."""
    claim, logged = stated("B6"), evidence["slow_momentum"]
    exact = {p: of_beta(logged, p, BETAS[0]) for p in (FEW, MANY)}
    null = Null(exact[MANY], evidence["null_slow_momentum"].contender(nodes=MANY))
    losses = [
        claim.check(
            "loss",
            f"p = {MANY}: test loss with a slow momentum of {beta:g} over test loss without",
            loss_ratio(of_beta(logged, MANY, beta), exact[MANY], CHECKS, null),
        )
        for beta in BETAS[1:]
    ]
    many, few = ((of_beta(logged, p, BETAS[-1]), exact[p]) for p in (MANY, FEW))
    what = f"this ratio with {BETAS[-1]:g}, p = {MANY} over p = {FEW}"
    growth = claim.check("growth", what, loss_growth(many, few, CHECKS, null))
    best = {p: min(BETAS, key=lambda beta: median(scores(of_beta(logged, p, beta)))) for p in (FEW, MANY)}
    reason = f"Of the momenta {MOMENTA} the best is {best[FEW]:g} with {FEW} workers, and {best[MANY]:g} with {MANY}."
    return claim.judged([max(losses, key=nearness_below), growth], reason)


def of_beta(logged: Logged, p: int, beta: float) -> Contender:
    """Return the contender with so much slow momentum."""
    return logged.contender(nodes=p, algo__beta=beta)


def _studies() -> Iterator[Study]:
    for task in TASKS:
        setting = (f"nodes={FEW},{MANY}", "eval.every_steps=640")
        ways = [{**SLOWMO, "algo.beta": beta} for beta in BETAS]
        yield ending("slow_momentum", task, named(ways), *setting)
        yield ending("null_slow_momentum", task, named(ways[:1]), f"nodes={MANY}", "eval.every_steps=640", NULL)


PAPER = Paper(
    key="wang2020_real",
    order=13,
    title="SlowMo, at the real scale",
    reference="Wang, Tantia, Ballas, Rabbat 2020, arXiv 1910.00643",
    summary=(
        "What a momentum over rounds of local SGD gains, with 2 and with 16 workers, by "
        "[the protocol](../../docs/explanation/papers.md)."
    ),
    assumptions=(
        Assumption("slow learning rate", "1", "published"),
        Assumption("period", f"{TAU}", "published"),
        Assumption("slow momenta", MOMENTA, "ours"),
        Assumption("momentum of the local steps", "0.9, kept over rounds; Nesterov", "published"),
        *COSINE_ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(Claim(stated("B6"), ("slow_momentum", "null_slow_momentum"), b6, TASKS),),
)
