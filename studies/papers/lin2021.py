"""Quasi-global momentum and RelaySGD, for data that differ."""

from __future__ import annotations

from studies.evidence.claim import claim_on_tasks
from studies.evidence.contrast import Contrast, Measure, accuracy_at_end, at_once, constant
from studies.evidence.paired_t import difference
from studies.papers import CLAIMS, described

P = 16
EVEN, SKEWED = 10, 0.1  # alpha of the Dirichlet distribution
HEAVY_BALL = "optimizer.nesterov=false"
WAYS = {
    "D-PSGD": f"dpsgd gradient=first topology=ring {HEAVY_BALL}",
    "quasi-global momentum": f"corrected method=qg topology=ring optimizer.momentum=0 {HEAVY_BALL}",
    "RelaySGD": f"relay topology=chain {HEAVY_BALL}",
}


def end(task: str, way: str, alpha: float) -> Measure:
    """Measure the accuracy of a way where the workers' data differ so much."""
    return accuracy_at_end(task, P, f"{WAYS[way]} data.split=dirichlet data.split_alpha={alpha:g}", part=2)


def gains(task: str) -> list[Contrast]:
    """Compare quasi-global with local momentum where data differ most."""
    better, local = (end(task, way, SKEWED) for way in ("quasi-global momentum", "D-PSGD"))
    what = f"alpha = {SKEWED}: accuracy of quasi-global momentum minus accuracy of D-PSGD"
    return [Contrast("gain", what, better, local, difference)]


def drops(task: str) -> list[Contrast]:
    """Compare what the skew costs RelaySGD with half of what it costs D-PSGD."""
    plain, relay = ([end(task, way, alpha) for alpha in (EVEN, SKEWED)] for way in ("D-PSGD", "RelaySGD"))
    lost, lost_by_relay = (at_once(pair, lambda even, skewed: even - skewed) for pair in (plain, relay))
    half = at_once(plain, lambda even, skewed: (even - skewed) / 2)
    what = f"accuracy at alpha = {EVEN} minus at {SKEWED}"
    return [
        Contrast("drop", f"D-PSGD: {what}", lost, constant(0.0), difference),
        Contrast("half", f"RelaySGD: {what}, minus half of D-PSGD's", lost_by_relay, half, difference),
    ]


PAPER = described("lin2021", claim_on_tasks(CLAIMS["B12a"], gains), claim_on_tasks(CLAIMS["B12b"], drops))
