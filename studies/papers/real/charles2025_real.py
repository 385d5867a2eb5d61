"""Charles et al. 2025 at the real scale: DiLoCo with one worker, and with a larger batch."""

from __future__ import annotations

from collections.abc import Iterator

from dsgd.report.contest import Contender
from studies.papers.charles2025 import GROWTH, LARGER, METHODS, WHAT
from studies.papers.real.tasks import NULL, ON_BOTH_TASKS, RATE, TASKS, stated, tuned
from studies.reproduction.fair import Null, loss_growth, loss_ratio
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, named
from studies.reproduction.verdict import Finding

BATCHES = {"shapes": 8, "fashion": 16}
STEPS = 5120  # with the larger batch
SETTING = ("nodes=1", "eval.every_steps=640", RATE)


def d6(evidence: Evidence) -> Finding:
    """Compare the losses at the end, at equal samples."""
    claim, logged = stated("D6"), evidence["batches"]
    exact, late = (logged.contender(algo=algo, budget__steps=LARGER * STEPS) for algo in ("sync", "diloco"))
    return claim.judged([claim.check("loss", WHAT, loss_ratio(exact, late, 1, _null(evidence)))])


def d7(evidence: Evidence) -> Finding:
    """Compare by how much the losses at the end grow with the batch, at equal samples."""
    claim, logged = stated("D7"), evidence["batches"]
    exact, late = (_pair(logged, algo) for algo in ("sync", "diloco"))
    return claim.judged([claim.check("growth", GROWTH, loss_growth(exact, late, 1, _null(evidence)))])


def _pair(logged: Logged, algo: str) -> tuple[Contender, Contender]:
    """Return an algorithm with the larger and with the smaller batch."""
    larger, smaller = (logged.contender(algo=algo, budget__steps=steps) for steps in (STEPS, LARGER * STEPS))
    return larger, smaller


def _null(evidence: Evidence) -> Null:
    first = evidence["batches"].contender(algo="sync", budget__steps=LARGER * STEPS)
    return Null(first, evidence["null_batches"].contender(algo="sync"))


def _studies() -> Iterator[Study]:
    for task in TASKS:
        small = {"batch_size": BATCHES[task], "budget.steps": LARGER * STEPS}
        large = {"batch_size": LARGER * BATCHES[task], "budget.steps": STEPS}
        ways = [{**method, **size} for size in (small, large) for method in METHODS]
        yield tuned("batches", task, named(ways), *SETTING)
        yield tuned("null_batches", task, named(ways[:1]), *SETTING, NULL)


PAPER = Paper(
    key="charles2025_real",
    order=22,
    title="Scaling laws for DiLoCo, at the real scale",
    reference="Charles et al. 2025, arXiv 2503.09799",
    summary=(
        "DiLoCo with one worker, which sends nothing, beside plain SGD, with two batches, by "
        "[the protocol](../../docs/explanation/papers.md). Forecast: 0.88 core-hours."
    ),
    assumptions=(
        Assumption("H", "30", "published"),
        Assumption("outer rate and momentum", "0.7 and 0.9; the paper tunes the rate", "ours"),
        Assumption("batches", "8 and 32 on shapes, 16 and 64 on fashion, at equal samples", "ours"),
        Assumption("local steps", "SGD with Nesterov's momentum 0.9 instead of AdamW", "ours"),
        Assumption("schedule", "cosine, over 20,480 and 5,120 steps", "ours"),
        *ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=tuple(
        Claim(stated(id), ("batches", "null_batches"), judge, TASKS) for id, judge in {"D6": d6, "D7": d7}.items()
    ),
)
