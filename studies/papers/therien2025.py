"""Thérien et al. 2025: MuLoCo, DiLoCo whose workers step by Muon."""

from __future__ import annotations

from dsgd.report.contest import Contender
from studies.papers import CLAIMS
from studies.reproduction.logged import Logged
from studies.reproduction.paired import growth, ratio
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, named, newer_small
from studies.reproduction.verdict import Finding

WORKERS, TAU, SEEDS = 4, 30, 10
BETAS = {"adamw": 0.9, "muon": 0.6}  # outer momentum
RATE = "compare.tune={optimizer.lr: [0.004, 0.016]}"
# the experiments set SGD's momentum: without it each optimizer has its own
LOCAL = ("~optimizer.momentum", "~optimizer.nesterov", "optimizer.weight_decay=0.01")
WAYS = [
    way
    for name, beta in BETAS.items()
    for way in (
        {"algo": "diloco", "algo.tau": TAU, "algo.beta": beta, "optimizer": name},
        {"algo": "sync", "optimizer": name},
    )
]
LOSS = "test loss of DiLoCo, with AdamW over with Muon"
RELATIVE = "test loss of DiLoCo over that of data-parallel training, with AdamW over with Muon"


def pairs(logged: Logged) -> list[tuple[Contender, Contender]]:
    """Return DiLoCo and data-parallel training, with AdamW and with Muon."""
    return [
        (logged.contender(algo="diloco", optimizer=name), logged.contender(algo="sync", optimizer=name))
        for name in BETAS
    ]


def d8(evidence: Evidence) -> Finding:
    """Compare the losses at the end with both optimizers, and each with that of its data-parallel training."""
    claim = CLAIMS["D8"]
    adamw, muon = pairs(evidence["optimizers"])
    loss, relative = ratio(adamw[0], muon[0]), growth(adamw, muon)
    return claim.judged([claim.check("loss", LOSS, loss), claim.check("relative", RELATIVE, relative)])


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
        Assumption("what is trained", f"an MLP on generated images of 8 x 8 pixels, {WORKERS} workers, batch 16 each, "
                   "10 epochs; the local rate is tuned", "ours"),
    ),
    studies=(
        newer_small(
            "optimizers", f"nodes={WORKERS}", RATE, *LOCAL, f"compare.contenders=[{named(WAYS)}]",
            f"compare.seeds={SEEDS}",
        ),
    ),
    claims=(Claim(CLAIMS["D8"], ("optimizers",), d8),),
)  # fmt: skip
