"""SlowMo: what slow momentum gains, with few and with many workers."""

from __future__ import annotations

from operator import truediv

from studies.evidence.claim import claim_on_tasks
from studies.evidence.contrast import Contrast, Measure, at_once, loss_at_end
from studies.papers import CLAIMS, described

FEW, MANY = 2, 16  # workers
TAU = 12
SMALL, LARGE = 0.4, 0.8  # slow momenta


def end(task: str, nodes: int, *betas: float) -> Measure:
    """Measure the loss with one of several slow momenta, by tuning."""
    return loss_at_end(task, nodes, *(f"diloco outer=slowmo olr=1 tau={TAU} beta={beta:g}" for beta in betas))


def gains(task: str) -> list[Contrast]:
    """Compare the losses with and without slow momentum, and what it gains with few and with many workers."""
    many, few = (at_once([end(task, nodes, LARGE), end(task, nodes, 0)], truediv) for nodes in (MANY, FEW))
    what = f"p = {MANY}: test loss with a slow momentum of {SMALL:g} or {LARGE:g}, by tuning, over that without"
    return [
        Contrast("loss", what, end(task, MANY, SMALL, LARGE), end(task, MANY, 0)),
        Contrast("growth", f"this ratio with {LARGE:g}, p = {MANY} over p = {FEW}", many, few),
    ]


PAPER = described("wang2020", claim_on_tasks(CLAIMS["B6"], gains))
