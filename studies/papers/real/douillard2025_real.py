"""Douillard et al. 2025 at the real scale: what averages cost that are some steps late."""

from __future__ import annotations

from collections.abc import Iterator

from studies.papers.douillard2025 import DELAYS, WAYS, WORKERS
from studies.papers.real.tasks import COSINE_ON_BOTH_TASKS, NULL, TASKS, ending, stated
from studies.reproduction.fair import Null, loss_ratio
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, named
from studies.reproduction.verdict import Finding

SETTING = (f"nodes={WORKERS}", "eval.every_steps=640")


def d4(evidence: Evidence) -> Finding:
    """Compare the losses at the end with those without delay, at equal samples."""
    claim, logged = stated("D4"), evidence["delays"]
    exact = logged.contender(algo__delay=0)
    null = Null(exact, evidence["null_delays"].contender(algo="streaming"))
    each = {delay: logged.contender(algo__delay=delay) for delay in DELAYS}
    ratios = {delay: loss_ratio(late, exact, len(DELAYS), null) for delay, late in each.items()}
    what = "delay of {}: test loss over that without"
    return claim.judged([claim.check("loss", what.format(delay), value) for delay, value in ratios.items()])


def _studies() -> Iterator[Study]:
    for task in TASKS:
        yield ending("delays", task, named(WAYS), *SETTING)
        yield ending("null_delays", task, named(WAYS[:1]), *SETTING, NULL)


PAPER = Paper(
    key="douillard2025_real",
    order=19,
    title="Streaming DiLoCo, at the real scale",
    reference="Douillard et al. 2025, arXiv 2501.18512",
    summary=(
        "What averages cost that are up to 10 steps late, by [the protocol](../../docs/explanation/papers.md). "
        "All workers have the same delay. Forecast: 0.88 core-hours."
    ),
    assumptions=(
        Assumption("H, delays", "30; 1, 5, 10 steps", "unconfirmed"),
        Assumption("fragments", "2, so that the longest delay fits", "ours"),
        Assumption("local steps", "SGD with Nesterov's momentum 0.9 instead of AdamW", "ours"),
        *COSINE_ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(Claim(stated("D4"), ("delays", "null_delays"), d4, TASKS),),
)
