"""Cagnasso et al. 2026: GASLoC, local steps and gossip with an outer optimizer."""

from __future__ import annotations

from studies.evidence.claim import Cells, claim_on_tasks, claim_over_conditions
from studies.evidence.contrast import Contrast, loss_at_end, seconds
from studies.evidence.pipeline import Candidate
from studies.evidence.tasks import TARGETS
from studies.papers import CLAIMS, described
from studies.papers.koloskova2019 import GAMMAS, ORDERS, P

TAU = 20
MOMENTA = (0.25, 0.5)  # outer ones, where every step is a round
ONE_STEP, SEVERAL = "gasloc tau=1 eta=1", f"gasloc tau={TAU}"
DILOCO = f"diloco tau={TAU}"
GRAPHS = {"ring": "topology=ring", "torus": "topology=torus", "random partner": "peers=one"}
ON_RING: dict[str, tuple[str, ...]] = {f"D-PSGD, gradient={order}": (f"dpsgd gradient={order}",) for order in ORDERS}
ON_RING["CHOCO-SGD with signs"] = tuple(f"choco compressor=sign gamma={gamma:g}" for gamma in GAMMAS)
OTHERS = {
    "ring": ON_RING,
    "torus": {f"D-PSGD, gradient={order}": (f"dpsgd gradient={order} topology=torus",) for order in ORDERS},
    "random partner": {"NoLoCo": ("noloco tau=1",)},
}
UNEQUAL = "cluster=gcp4 cluster.message_bytes=4.68e7 cluster.gradient_s=0.2"


def each_step(task: str) -> Cells:
    """Compare the loss at the end with those of other decentralised methods that average after every step."""

    def over_others(graph: str) -> list[Contrast]:
        names = (f"{ONE_STEP} gamma={gamma:g} {GRAPHS[graph]}" for gamma in MOMENTA)
        mixed = loss_at_end(task, P, *(name.removesuffix(" topology=ring") for name in names))
        what = "test loss over test loss of"
        return [
            Contrast("loss", f"{what} {other}", mixed, loss_at_end(task, P, *variants))
            for other, variants in OTHERS[graph].items()
        ]

    return {graph: over_others(graph) for graph in GRAPHS}


def rounds(task: str) -> list[Contrast]:
    """Compare the loss at the end with that of DiLoCo, with several local steps."""
    exact = loss_at_end(task, P, DILOCO)
    what = f"H = {TAU}, {{}}: test loss over test loss of DiLoCo"
    return [
        Contrast("loss", what.format(graph), loss_at_end(task, P, f"{SEVERAL} {GRAPHS[graph]}"), exact)
        for graph in ("torus", "random partner")
    ]


def unequal_links(task: str) -> list[Contrast]:
    """Compare times to the target between regions of unequal bandwidth."""
    waiting, mixing = (
        seconds([Candidate(task, name, P, network=UNEQUAL) for name in names], TARGETS[task])
        for names in ([DILOCO], [f"{SEVERAL} {GRAPHS[graph]}" for graph in ("torus", "random partner")])
    )
    return [Contrast("time", f"H = {TAU}: time to the target, DiLoCo over GASLoC", waiting, mixing)]


PAPER = described(
    "cagnasso2026",
    claim_over_conditions(CLAIMS["D9"], each_step),
    claim_on_tasks(CLAIMS["D10"], rounds),
    claim_on_tasks(CLAIMS["D11"], unequal_links),
)
