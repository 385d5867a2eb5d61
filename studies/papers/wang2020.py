"""SlowMo: what slow momentum gains, with few and with many workers."""

from __future__ import annotations

from studies.evidence.claim import claim_on_tasks
from studies.evidence.contrast import Contrast, Measure, at_once, loss
from studies.evidence.pipeline import Candidate
from studies.evidence.tasks import STEPS
from studies.papers import CLAIMS, described

FEW, MANY = 2, 16  # workers
TAU = 12
SMALL, LARGE = 0.4, 0.8  # slow momenta


def end(task: str, nodes: int, *betas: float) -> Measure:
    """Measure the loss with one of several slow momenta, by tuning."""
    name = f"diloco outer=slowmo olr=1 tau={TAU} beta="
    return loss([Candidate(task, f"{name}{beta:g}", nodes) for beta in betas], STEPS[task])


def gains(task: str) -> list[Contrast]:
    """Compare the losses with and without slow momentum, and what it gains with few and with many workers."""
    many, few = (
        at_once([end(task, nodes, LARGE), end(task, nodes, 0)], lambda slow, plain: slow / plain)
        for nodes in (MANY, FEW)
    )
    what = f"p = {MANY}: test loss with a slow momentum of {SMALL:g} or {LARGE:g}, by tuning, over that without"
    return [
        Contrast("loss", what, end(task, MANY, SMALL, LARGE), end(task, MANY, 0)),
        Contrast("growth", f"this ratio with {LARGE:g}, p = {MANY} over p = {FEW}", many, few),
    ]


PAPER = described(
    "wang2020",
    claims=(claim_on_tasks(CLAIMS["B6"], gains),),
)
