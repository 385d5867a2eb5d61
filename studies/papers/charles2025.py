"""Charles et al. 2025: the scaling laws of DiLoCo, down to one worker."""

from __future__ import annotations

from studies.evidence.claim import claim_on_tasks
from studies.evidence.contrast import Contrast, Measure, at_once, loss
from studies.evidence.pipeline import Candidate
from studies.evidence.tasks import STEPS
from studies.papers import CLAIMS
from studies.reproduction.paper import Assumption, Paper

TAU, LARGER = 30, 4  # times the batch
BATCHES = {"shapes": 8, "fashion": 16}
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
    exact, late = (
        at_once([end(task, way, LARGER), end(task, way, 1)], lambda large, small: large / small) for way in WAYS
    )
    what = f"growth of the test loss with {LARGER} times the batch, data-parallel over DiLoCo"
    return [Contrast("growth", what, exact, late)]


PAPER = Paper(
    key="charles2025",
    order=22,
    title="Scaling laws for DiLoCo",
    reference="Charles et al. 2025, arXiv 2503.09799",
    summary=(
        "DiLoCo with a single worker sends nothing: every H steps its outer optimiser takes what the worker has moved "
        "for a gradient. The paper finds it better than data-parallel training, and the more so with large batches."
    ),
    assumptions=(
        Assumption("H", f"{TAU}", "published"),
        Assumption("local steps", "SGD with Nesterov's momentum 0.9 instead of AdamW", "ours"),
        Assumption("outer rate and momentum", "0.7 and 0.9; the paper tunes the rate", "ours"),
        Assumption("batches", "8 and 32 on shapes, 16 and 64 on fashion, at equal samples", "ours"),
        Assumption("schedule", "cosine", "ours"),
    ),
    studies=(),
    claims=(claim_on_tasks(CLAIMS["D6"], ends), claim_on_tasks(CLAIMS["D7"], growth)),
)
