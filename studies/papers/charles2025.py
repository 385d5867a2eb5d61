"""Charles et al. 2025: the scaling laws of DiLoCo, down to one worker."""

from __future__ import annotations

from studies.papers import CLAIMS
from studies.reproduction.paired import growth, ratio
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, named, newer_small
from studies.reproduction.verdict import Finding

TAU, LARGER, SEEDS = 30, 4, 10  # LARGER: times the batch
BATCH = 16
METHODS = ({"algo": "sync"}, {"algo": "diloco", "algo.tau": TAU})
WHAT = "test loss, data-parallel over DiLoCo"
GROWTH = f"growth of the test loss with {LARGER} times the batch, data-parallel over DiLoCo"
WAYS = [{**method, "batch_size": batch} for batch in (BATCH, LARGER * BATCH) for method in METHODS]


def d6(evidence: Evidence) -> Finding:
    """Compare the losses at the end, each with the rate that suits it, at equal samples."""
    claim, logged = CLAIMS["D6"], evidence["batches"]
    value = ratio(*(logged.contender(algo=algo, batch_size=BATCH) for algo in ("sync", "diloco")))
    return claim.judged([claim.check("loss", WHAT, value)])


def d7(evidence: Evidence) -> Finding:
    """Compare by how much the losses at the end grow with the batch, at equal samples."""
    claim, logged = CLAIMS["D7"], evidence["batches"]
    batches = (LARGER * BATCH, BATCH)
    exact, late = ([logged.contender(algo=algo, batch_size=b) for b in batches] for algo in ("sync", "diloco"))
    return claim.judged([claim.check("growth", GROWTH, growth((exact[0], exact[1]), (late[0], late[1])))])


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
        Assumption("local steps", "SGD with momentum 0.9 instead of AdamW; the rate is tuned", "ours"),
        Assumption("outer optimiser", "Nesterov's momentum, 0.9", "published"),
        Assumption("outer rate", "0.7; the paper tunes it", "ours"),
        Assumption("batches", f"{BATCH} and {LARGER * BATCH}, at equal samples", "ours"),
        Assumption("what is trained", "an MLP on generated images of 8 x 8 pixels, one worker, 10 epochs", "ours"),
    ),
    studies=(newer_small("batches", "nodes=1", f"compare.contenders=[{named(WAYS)}]", f"compare.seeds={SEEDS}"),),
    claims=(Claim(CLAIMS["D6"], ("batches",), d6), Claim(CLAIMS["D7"], ("batches",), d7)),
)
