"""CHOCO-SGD: whether short codes come to the loss of D-PSGD."""

from __future__ import annotations

from studies.evidence.claim import Cells, claim_over_conditions
from studies.evidence.contrast import Contrast, loss_at_end
from studies.papers import CLAIMS, described

P = 8
CODES = {"top 1 %": "compressor=topk share=0.01", "signs": "compressor=sign"}
GAMMAS = (0.05, 0.1, 0.2, 0.4)
ORDERS = ("before", "first")  # of D-PSGD: the published one, and that which CHOCO is without a code and with gamma = 1


def losses(task: str) -> Cells:
    """Compare the loss with each code, gamma tuned, with that of D-PSGD in both of its orders."""
    plain = {order: loss_at_end(task, P, f"dpsgd gradient={order}") for order in ORDERS}

    def coded(code: str) -> list[Contrast]:
        short = loss_at_end(task, P, *(f"choco {code} gamma={gamma:g}" for gamma in GAMMAS))
        what = "test loss over test loss of D-PSGD with algo.gradient="
        return [Contrast("loss", f"{what}{order}", short, plain[order]) for order in ORDERS]

    return {name: coded(code) for name, code in CODES.items()}


PAPER = described("koloskova2019", claim_over_conditions(CLAIMS["B10"], losses))
