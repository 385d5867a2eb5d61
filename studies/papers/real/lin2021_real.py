"""Quasi-global momentum and RelaySGD at the real scale, for data that differ."""

from __future__ import annotations

from collections.abc import Iterator

from dsgd.report.contest import Contender
from studies.papers.real.tasks import COSINE_ON_BOTH_TASKS, NULL, TASKS, ending, stated
from studies.reproduction.fair import Null, accuracy_gain, drop_difference
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, listed, named
from studies.reproduction.verdict import Finding

P = 16
EVEN, SKEWED = 10, 0.1  # alpha of the Dirichlet distribution
WAYS = (
    {"algo": "dpsgd", "algo.gradient": "first", "topology": "ring"},
    {"algo": "corrected", "algo.method": "qg", "optimizer.momentum": 0, "topology": "ring"},
    {"algo": "relay", "topology": "chain"},
)
HALF = 0.5
# the statistics of batch norm would be those of a worker's own classes
WITHOUT_BATCH_NORM = {"shapes": (), "fashion": ("model.norm=group",)}
CHECKS = 2  # of B12b


def b12a(evidence: Evidence) -> Finding:
    """Compare the accuracy of quasi-global momentum with that of local momentum where data differ most."""
    claim, logged = stated("B12a"), evidence["shares"]
    better, local = (contender_at(logged, algo, SKEWED) for algo in ("corrected", "dpsgd"))
    what = f"alpha = {SKEWED}: accuracy of quasi-global momentum minus accuracy of D-PSGD"
    return claim.judged([claim.check("gain", what, accuracy_gain(better, local, 1, _null(evidence, SKEWED)))])


def b12b(evidence: Evidence) -> Finding:
    """Compare what the skew costs RelaySGD with half of what it costs D-PSGD with momentum."""
    claim, logged = stated("B12b"), evidence["shares"]
    nulls = [_null(evidence, alpha) for alpha in (EVEN, SKEWED)]
    relay, plain = _pair(logged, "relay"), _pair(logged, "dpsgd")
    what = f"accuracy at alpha = {EVEN} minus at {SKEWED}"
    drop = drop_difference(plain, relay, 0.0, CHECKS, nulls)
    half = drop_difference(relay, plain, HALF, CHECKS, nulls)
    return claim.judged(
        [
            claim.check("drop", f"D-PSGD: {what}", drop),
            claim.check("half", f"RelaySGD: {what}, minus half of D-PSGD's", half),
        ]
    )


def contender_at(logged: Logged, algo: str, alpha: float) -> Contender:
    """Return the contender with this algorithm on such shares."""
    return logged.contender(algo=algo, data__split_alpha=alpha)


def _pair(logged: Logged, algo: str) -> tuple[Contender, Contender]:
    """Return an algorithm with even and with skewed shares."""
    return contender_at(logged, algo, EVEN), contender_at(logged, algo, SKEWED)


def _null(evidence: Evidence, alpha: float) -> Null:
    first, second = (contender_at(evidence[name], "dpsgd", alpha) for name in ("shares", "null_shares"))
    return Null(first, second)


def _studies() -> Iterator[Study]:
    for task in TASKS:
        shares = ("data.split=dirichlet", f"data.split_alpha={listed((EVEN, SKEWED))}")
        setting = (f"nodes={P}", *shares, "optimizer.nesterov=false", "eval.every_steps=640", *WITHOUT_BATCH_NORM[task])
        yield ending("shares", task, named(WAYS), *setting)
        yield ending("null_shares", task, named(WAYS[:1]), *setting, NULL)


PAPER = Paper(
    key="lin2021_real",
    order=18,
    title="Quasi-global momentum and RelaySGD, at the real scale",
    reference="Lin, Karimireddy, Stich, Jaggi 2021, arXiv 2102.04761; Vogels et al. 2021, arXiv 2110.04175",
    summary=(
        "What quasi-global momentum gains where workers have data of their own, and whether RelaySGD cares how they "
        "differ, by [the protocol](../../docs/explanation/papers.md)."
    ),
    assumptions=(
        Assumption("shares of data", "Dirichlet, alpha = 10 and 0.1; drawn anew with each seed", "published"),
        Assumption("graphs", f"{P} workers: a ring, for RelaySGD a chain", "published"),
        Assumption("momentum", "0.9, heavy ball; that of D-PSGD and RelaySGD is local", "published"),
        Assumption("order of D-PSGD", "step, then exchange", "published"),
        Assumption("norm of the ResNet-8", "GroupNorm", "ours"),
        Assumption("what is evaluated", "the mean of the workers' models", "ours"),
        *COSINE_ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(
        Claim(stated("B12a"), ("shares", "null_shares"), b12a, TASKS),
        Claim(stated("B12b"), ("shares", "null_shares"), b12b, TASKS),
    ),
)
