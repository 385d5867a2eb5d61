"""Kale et al. 2025 at the real scale: DiLoCo whose average comes a round late, with delayed and eager outer steps."""

from __future__ import annotations

from collections.abc import Iterator

from studies.papers.real.tasks import COSINE_ON_BOTH_TASKS, NULL, TASKS, stated, tuned
from studies.reproduction.fair import Null, loss_ratio
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, named
from studies.reproduction.verdict import Finding

OVERLAPS = ("none", "delayed", "eager")
PERIODS = (5, 20, 50)
CLAIMED, WORKERS = PERIODS[-1], 4
RATES = "compare.tune={optimizer.lr: [0.025, 0.2], algo.olr: [0.175, 0.7]}"
CHECKS = len(PERIODS) + 1


def b9(evidence: Evidence) -> Finding:
    """Compare the loss at the end with that of DiLoCo without overlap, over the local steps of a round."""
    claim, logged, checks = stated("B9"), evidence["late"], []
    for tau in PERIODS:
        exact, delayed, eager = (logged.contender(algo__overlap=overlap, algo__tau=tau) for overlap in OVERLAPS)
        null = Null(exact, evidence["null_late"].contender(algo__tau=tau))
        what = f"H = {tau}: test loss over that without overlap, {{}}"
        checks.append(claim.check("eager", what.format("eager"), loss_ratio(eager, exact, CHECKS, null)))
        if tau == CLAIMED:
            checks.append(claim.check("delayed", what.format("delayed"), loss_ratio(delayed, exact, CHECKS, null)))
    return claim.judged(checks)


def _studies() -> Iterator[Study]:
    ways = [{"algo": "diloco", "algo.overlap": overlap, "algo.tau": tau} for overlap in OVERLAPS for tau in PERIODS]
    for task in TASKS:
        setting = (RATES, "compare.tune_values=40", f"nodes={WORKERS}", "eval.every_steps=640")
        yield tuned("late", task, named(ways), *setting)
        yield tuned("null_late", task, named(ways[: len(PERIODS)]), *setting, NULL)


PAPER = Paper(
    key="kale2025_real",
    order=15,
    title="Eager updates for DiLoCo, at the real scale",
    reference="Kale, Douillard, Donchev 2025, arXiv 2502.12996",
    summary=(
        "What it costs that DiLoCo's average travels during the next round, with delayed and with eager outer steps, "
        "by [the protocol](../../docs/explanation/papers.md). What overlap saves is on "
        "[the page of the small scale](kale2025.md)."
    ),
    assumptions=(
        Assumption("outer optimiser", "Nesterov's momentum, 0.9", "published"),
        Assumption("outer rate", "tuned with the rate, from 0.175, 0.35 and 0.7 on", "ours"),
        Assumption("local steps", "SGD with Nesterov's momentum 0.9 instead of AdamW", "ours"),
        Assumption("workers", f"{WORKERS}", "ours"),
        *COSINE_ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(Claim(stated("B9"), ("late", "null_late"), b9, TASKS),),
)
