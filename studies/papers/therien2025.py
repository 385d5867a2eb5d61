"""Thérien et al. 2025: MuLoCo, DiLoCo whose workers step by Muon."""

from __future__ import annotations

from collections.abc import Mapping
from operator import truediv

from studies.evidence.claim import claim_on_tasks
from studies.evidence.contrast import Contrast, Measure, at_once, loss_at_end
from studies.evidence.tasks import IMAGES, contender
from studies.papers import CLAIMS, described

WORKERS, TAU = 4, 30
BETAS = {"adamw": 0.9, "muon": 0.6}  # outer momentum
# the experiments on images set SGD's momentum: without it each optimizer has its own
LOCAL: Mapping[str, str] = dict.fromkeys(IMAGES, "~optimizer.momentum ~optimizer.nesterov optimizer.weight_decay=0.01")
LEVEL = -8  # a rate of 0.00625


def end(task: str, way: str, optimizer: str) -> Measure:
    """Measure the loss of a way of training whose workers step by an optimizer."""
    name = contender(way, f"optimizer={optimizer}", LOCAL.get(task, ""))
    return loss_at_end(task, WORKERS, name, level=LEVEL)


def optimizers(task: str) -> list[Contrast]:
    """Compare the losses with both optimizers, and each with that of its data-parallel training."""
    late = {name: end(task, f"diloco tau={TAU} beta={beta:g}", name) for name, beta in BETAS.items()}
    adamw, muon = (at_once([late[name], end(task, "sync", name)], truediv) for name in BETAS)
    relative = "test loss of DiLoCo over that of data-parallel training, with AdamW over with Muon"
    return [
        Contrast("loss", "test loss of DiLoCo, with AdamW over with Muon", late["adamw"], late["muon"]),
        Contrast("relative", relative, adamw, muon),
    ]


PAPER = described("therien2025", claim_on_tasks(CLAIMS["D8"], optimizers, ("text", *IMAGES)))
