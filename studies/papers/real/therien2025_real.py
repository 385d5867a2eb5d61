"""Thérien et al. 2025 at the real scale: DiLoCo with Muon and with AdamW."""

from __future__ import annotations

from collections.abc import Iterator

from studies.papers.real.tasks import COSINE_ON_BOTH_TASKS, NULL, TASKS, stated, tuned
from studies.papers.therien2025 import LOCAL, LOSS, RATE, RELATIVE, WAYS, WORKERS, pairs
from studies.reproduction.fair import Null, loss_growth, loss_ratio
from studies.reproduction.pages import shown
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, named
from studies.reproduction.verdict import Finding

SETTING = (f"nodes={WORKERS}", "eval.every_steps=640", RATE, *LOCAL)
CHECKS = 2


def d8(evidence: Evidence) -> Finding:
    """Compare the losses at the end with both optimizers, and each with that of its data-parallel training."""
    claim = stated("D8")
    adamw, muon = pairs(evidence["optimizers"])
    null = Null(adamw[0], evidence["null_optimizers"].contender(algo="diloco"))
    loss, relative = loss_ratio(adamw[0], muon[0], CHECKS, null), loss_growth(adamw, muon, CHECKS, null)
    alone = [loss_ratio(*pair, 1, null) for pair in (adamw, muon)]
    reason = "Test loss of DiLoCo over that of data-parallel training: " + " and ".join(
        f"{shown(value)} with {name}" for name, value in zip(("AdamW", "Muon"), alone, strict=True)
    )
    return claim.judged([claim.check("loss", LOSS, loss), claim.check("relative", RELATIVE, relative)], f"{reason}.")


def _studies() -> Iterator[Study]:
    for task in TASKS:
        yield tuned("optimizers", task, named(WAYS), *SETTING)
        yield tuned("null_optimizers", task, named(WAYS[:1]), *SETTING, NULL)


PAPER = Paper(
    key="therien2025_real",
    order=23,
    title="MuLoCo, at the real scale",
    reference="Thérien et al. 2025, arXiv 2505.23725",
    summary=(
        "DiLoCo whose workers step by Muon or by AdamW, and the data-parallel training of each, by "
        "[the protocol](../../docs/explanation/papers.md). Forecast: 0.88 core-hours."
    ),
    assumptions=(
        Assumption("H", "30", "published"),
        Assumption("outer optimiser", "Nesterov's momentum, 0.9 with AdamW and 0.6 with Muon; rate 0.7", "published"),
        Assumption("weight decay", "0.01 for both; the paper tunes it", "ours"),
        Assumption("workers", f"{WORKERS}", "ours"),
        *COSINE_ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(Claim(stated("D8"), ("optimizers", "null_optimizers"), d8, TASKS),),
)
