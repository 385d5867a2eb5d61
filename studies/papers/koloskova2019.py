"""CHOCO-SGD: whether short codes come to the loss of D-PSGD."""

from __future__ import annotations

from studies.evidence.claim import Cells, claim_over_conditions
from studies.evidence.contrast import Contrast, loss
from studies.evidence.pipeline import Candidate
from studies.evidence.tasks import STEPS
from studies.papers import CLAIMS
from studies.reproduction.paper import Assumption, Paper

P = 8
CODES = {"top 1 %": "compressor=topk share=0.01", "signs": "compressor=sign"}
GAMMAS = (0.05, 0.1, 0.2, 0.4)
ORDERS = ("before", "first")  # of D-PSGD: the published one, and that which CHOCO is without a code and with gamma = 1


def losses(task: str) -> Cells:
    """Compare the loss with each code, gamma tuned, with that of D-PSGD in both of its orders."""
    plain = {order: loss([Candidate(task, f"dpsgd gradient={order}", P)], STEPS[task]) for order in ORDERS}

    def coded(code: str) -> list[Contrast]:
        variants = [Candidate(task, f"choco {code} gamma={gamma:g}", P) for gamma in GAMMAS]
        short = loss(variants, STEPS[task])
        what = "test loss over test loss of D-PSGD with algo.gradient="
        return [Contrast("loss", f"{what}{order}", short, plain[order]) for order in ORDERS]

    return {name: coded(code) for name, code in CODES.items()}


PAPER = Paper(
    key="koloskova2019",
    order=17,
    title="CHOCO-SGD: decentralised SGD with compressed communication",
    reference="Koloskova, Stich, Jaggi 2019, arXiv 1902.00340; Koloskova, Lin, Stich, Jaggi 2020, arXiv 1907.09356",
    summary=(
        "Whether gossip of short codes comes to the loss of D-PSGD. Signs take a 32nd of the bytes, and one entry of a "
        "hundred with its place a 50th."
    ),
    assumptions=(
        Assumption("order", "step, send, mix", "published"),
        Assumption("codes", "of the whole vector, not of each layer", "ours"),
        Assumption("gamma", "0.05, 0.1, 0.2 or 0.4, by tuning, for each code", "ours"),
        Assumption("local momentum", "0.9, not mixed; Nesterov", "ours"),
        Assumption("workers", f"{P}, in a ring", "published"),
    ),
    studies=(),
    claims=(claim_over_conditions(CLAIMS["B10"], losses),),
)
