"""Assran et al. 2019 at the real scale: what SGP and its overlapped form cost in accuracy."""

from __future__ import annotations

from collections.abc import Iterator

from dsgd.report.contest import Contender
from studies.papers.real.tasks import COSINE_ON_BOTH_TASKS, MOST_TESTED, NULL, TASKS, ending, stated
from studies.reproduction.fair import Null, accuracy_gain
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, listed, named
from studies.reproduction.verdict import Finding

NODES = (8, 16)
WAYS = ({"algo": "sync"}, {"algo": "sgp", "algo.overlap": 0}, {"algo": "sgp", "algo.overlap": 1})
CHECKS = 2 * len(NODES)


def b4(evidence: Evidence) -> Finding:
    """Compare the accuracy at the end with all-reduce's, and with overlap against without."""
    claim, checks = stated("B4"), []
    for p in NODES:
        exact, push, late = contenders(evidence["accuracy"], p)
        null = Null(exact, evidence["null_accuracy"].contender(algo="sync", nodes=p))
        what = f"p = {p}: test accuracy, SGP minus all-reduce"
        checks.append(claim.check("accuracy", what, accuracy_gain(push, exact, CHECKS, null)))
        what = f"p = {p}: test accuracy, SGP with an overlap of 1 minus SGP"
        checks.append(claim.check("overlap", what, accuracy_gain(late, push, CHECKS, null)))
    return claim.judged(checks)


def contenders(logged: Logged, p: int) -> list[Contender]:
    """Return all-reduce, SGP, and SGP with an overlap of one step."""
    push = [logged.contender(algo="sgp", nodes=p, algo__overlap=overlap) for overlap in (0, 1)]
    return [logged.contender(algo="sync", nodes=p), *push]


def _studies() -> Iterator[Study]:
    for task in TASKS:
        setting = (f"nodes={listed(NODES)}", "topology=one_peer_exponential", "eval.every_steps=640")
        yield ending("accuracy", task, named(WAYS), *setting, *MOST_TESTED[task])
        yield ending("null_accuracy", task, named(WAYS[:1]), *setting, *MOST_TESTED[task], NULL)


PAPER = Paper(
    key="assran2019_real",
    order=11,
    title="Stochastic gradient push, at the real scale",
    reference="Assran, Loizou, Ballas, Rabbat 2019, arXiv 1811.10792",
    summary=(
        "What SGP costs in accuracy, with and without overlap, by [the protocol](../../docs/explanation/papers.md). "
        "The speed of a step needs no training: it is on [the page of the small scale](assran2019.md)."
    ),
    assumptions=(
        Assumption("graph", "one peer in each step, at distances 1, 2, 4, ...", "published"),
        Assumption("momentum", "0.9, local; Nesterov", "published"),
        *COSINE_ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(Claim(stated("B4"), ("accuracy", "null_accuracy"), b4, TASKS),),
)
