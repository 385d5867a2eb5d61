"""Douillard et al. 2025: streaming DiLoCo, whose averages are late."""

from __future__ import annotations

from studies.evidence.claim import claim_on_tasks
from studies.evidence.contrast import Contrast, loss
from studies.evidence.pipeline import Candidate
from studies.evidence.tasks import STEPS
from studies.papers import CLAIMS
from studies.reproduction.paper import Assumption, Paper

WORKERS, TAU, FRAGMENTS = 4, 30, 2
DELAYS = (1, 5, 10)


def delays(task: str) -> list[Contrast]:
    """Compare the losses at the end with those without delay, at equal samples."""
    exact, *late = (
        loss([Candidate(task, f"streaming tau={TAU} fragments={FRAGMENTS} delay={delay}", WORKERS)], STEPS[task])
        for delay in (0, *DELAYS)
    )
    what = "delay of {}: test loss over that without"
    return [Contrast("loss", what.format(delay), each, exact) for delay, each in zip(DELAYS, late, strict=True)]


PAPER = Paper(
    key="douillard2025",
    order=19,
    title="Streaming DiLoCo with overlapping communication",
    reference="Douillard et al. 2025, arXiv 2501.18512",
    summary=(
        "DiLoCo's average travels in fragments, while the workers go on for some steps. The paper finds that a delay "
        "of up to 10 steps costs next to nothing. All workers have the same delay. H, the local steps of a round, is "
        "`algo.tau`."
    ),
    assumptions=(
        Assumption("H, delays", f"{TAU}; {', '.join(map(str, DELAYS))} steps", "unconfirmed"),
        Assumption("fragments", f"{FRAGMENTS}, so that the longest delay fits", "ours"),
        Assumption("share of its parameters that a worker keeps", "0.5", "published"),
        Assumption("outer optimiser", "Nesterov's momentum, 0.9; rate 0.7", "published"),
        Assumption("local steps", "SGD with Nesterov's momentum 0.9 instead of AdamW", "ours"),
        Assumption("workers", f"{WORKERS}", "ours"),
    ),
    studies=(),
    claims=(claim_on_tasks(CLAIMS["D4"], delays),),
)
