"""Thérien et al. 2025: MuLoCo, DiLoCo whose workers step by Muon."""

from __future__ import annotations

from studies.evidence.claim import claim_on_tasks
from studies.evidence.contrast import Contrast, Measure, at_once, loss
from studies.evidence.pipeline import Candidate
from studies.evidence.tasks import STEPS
from studies.papers import CLAIMS
from studies.reproduction.paper import Assumption, Paper

WORKERS, TAU = 4, 30
BETAS = {"adamw": 0.9, "muon": 0.6}  # outer momentum
# the experiments set SGD's momentum: without it each optimizer has its own
LOCAL = "~optimizer.momentum ~optimizer.nesterov optimizer.weight_decay=0.01"
LEVEL = -8  # a rate of 0.00625


def end(task: str, way: str, optimizer: str) -> Measure:
    """Measure the loss of a way of training whose workers step by an optimizer."""
    return loss([Candidate(task, f"{way} optimizer={optimizer} {LOCAL}", WORKERS, level=LEVEL)], STEPS[task])


def optimizers(task: str) -> list[Contrast]:
    """Compare the losses with both optimizers, and each with that of its data-parallel training."""
    late = {name: end(task, f"diloco tau={TAU} beta={beta:g}", name) for name, beta in BETAS.items()}
    adamw, muon = (at_once([late[name], end(task, "sync", name)], lambda a, b: a / b) for name in BETAS)
    relative = "test loss of DiLoCo over that of data-parallel training, with AdamW over with Muon"
    return [
        Contrast("loss", "test loss of DiLoCo, with AdamW over with Muon", late["adamw"], late["muon"]),
        Contrast("relative", relative, adamw, muon),
    ]


PAPER = Paper(
    key="therien2025",
    order=23,
    title="MuLoCo: Muon is a practical inner optimizer for DiLoCo",
    reference="Thérien et al. 2025, arXiv 2505.23725",
    summary=(
        "Muon makes the steps of a matrix equally long in all directions. The paper finds that more than two workers "
        "who step by it lose less to data-parallel training than with AdamW, and that their model is better. H, the "
        "local steps of a round, is `algo.tau`."
    ),
    assumptions=(
        Assumption("H", f"{TAU}", "published"),
        Assumption("outer optimiser", "Nesterov's momentum, 0.9 with AdamW and 0.6 with Muon; rate 0.7", "published"),
        Assumption("weight decay", "0.01 for both; the paper tunes it", "ours"),
        Assumption("workers", f"{WORKERS}", "ours"),
    ),
    studies=(),
    claims=(claim_on_tasks(CLAIMS["D8"], optimizers),),
)
