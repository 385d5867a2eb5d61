"""Charles et al. 2025: the scaling laws of DiLoCo, down to one worker."""

from __future__ import annotations

from operator import truediv

from studies.evidence.claim import claim_on_tasks
from studies.evidence.contrast import Contrast, Measure, at_once, loss
from studies.evidence.pipeline import Candidate
from studies.evidence.tasks import BATCHES, STEPS
from studies.papers import CLAIMS, described

TAU, LARGER = 30, 4  # times the batch
WAYS = ("sync", f"diloco tau={TAU}")


def end(task: str, way: str, larger: int) -> Measure:
    """Measure the loss of one worker, with a batch that is so much larger, at equal samples."""
    name = f"{way} batch_size={larger * BATCHES[task]}"
    return loss([Candidate(task, name, 1)], LARGER * STEPS[task] // larger)


def ends(task: str) -> list[Contrast]:
    """Compare the losses at the end, at equal samples."""
    exact, late = (end(task, way, 1) for way in WAYS)
    return [Contrast("loss", "test loss, data-parallel over DiLoCo", exact, late)]


def growth(task: str) -> list[Contrast]:
    """Compare by how much the losses at the end grow with the batch, at equal samples."""
    exact, late = (at_once([end(task, way, LARGER), end(task, way, 1)], truediv) for way in WAYS)
    what = f"growth of the test loss with {LARGER} times the batch, data-parallel over DiLoCo"
    return [Contrast("growth", what, exact, late)]


PAPER = described("charles2025", claim_on_tasks(CLAIMS["D6"], ends), claim_on_tasks(CLAIMS["D7"], growth))
