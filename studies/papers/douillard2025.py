"""Douillard et al. 2025: streaming DiLoCo, whose averages are late."""

from __future__ import annotations

from studies.evidence.claim import claim_on_tasks
from studies.evidence.contrast import Contrast, loss_at_end
from studies.papers import CLAIMS, described

WORKERS, TAU, FRAGMENTS = 4, 30, 2
DELAYS = (1, 5, 10)


def delays(task: str) -> list[Contrast]:
    """Compare the losses at the end with those without delay, at equal samples."""
    exact, *late = (
        loss_at_end(task, WORKERS, f"streaming tau={TAU} fragments={FRAGMENTS} delay={delay}") for delay in (0, *DELAYS)
    )
    what = "delay of {}: test loss over that without"
    return [Contrast("loss", what.format(delay), each, exact) for delay, each in zip(DELAYS, late, strict=True)]


PAPER = described("douillard2025", claim_on_tasks(CLAIMS["D4"], delays))
