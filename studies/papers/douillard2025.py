"""Douillard et al. 2025: streaming DiLoCo, whose averages are late."""

from __future__ import annotations

from studies.evidence.claim import claim_on_tasks
from studies.evidence.contrast import Contrast, loss
from studies.evidence.pipeline import Candidate
from studies.evidence.tasks import STEPS
from studies.papers import CLAIMS, described

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


PAPER = described(
    "douillard2025",
    claims=(claim_on_tasks(CLAIMS["D4"], delays),),
)
