"""Judge the claims of Jin et al. about learning: who reaches the target first, over overlap, jitter and nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from studies.evidence.claim import checks_of, claim_on_tasks
from studies.evidence.contrast import Contrast, Need, loss, samples
from studies.evidence.pipeline import Pipelines
from studies.evidence.tasks import IMAGES, TARGETS
from studies.papers import CLAIMS
from studies.papers.jin2016 import remarks
from studies.papers.jin2016.contenders import ALL_REDUCE, CELLS, FEW, LAST, VARIANTS, cell_of, cells, race
from studies.reproduction.paper import Claim
from studies.reproduction.verdict import NEARNESS, Check, Finding, nearness_above, over_region

AROUND = (16, 64)  # nodes around the crossover
LONG = {"shapes": 5120, "fashion": 1280}  # steps after which losses are compared


def over_map(judge: Callable[[bool, float], Finding], reason: str = "") -> Finding:
    """Judge every cell of overlap and jitter."""
    return over_region(
        {
            f"jitter {100 * jitter:.0f} %, {'overlap' if overlap else 'no overlap'}": judge(overlap, jitter)
            for jitter, overlap in CELLS
        },
        reason,
    )


def j1(pipelines: Pipelines, task: str) -> Finding:
    """Compare times to the target on few nodes, in every cell of overlap and jitter."""
    stated = CLAIMS["J1"]

    def cell(overlap: bool, jitter: float) -> Finding:
        findings = []
        for algo in VARIANTS:
            races = [race("sooner", task, nodes, algo, overlap, jitter) for nodes in FEW]
            # the claim fails where both algorithms do, each on two of three numbers of nodes
            checks = [comparison.check(stated, pipelines, *checks_of(stated, races)) for comparison in races]
            findings.append(stated.judged(checks))
        return max(findings, key=lambda finding: (NEARNESS.index(finding.verdict), _sum_of_logs(finding.checks)))

    further = (each(pipelines, task) for each in (remarks.floor, remarks.jittered, remarks.spot_check))
    return over_map(cell, "".join(further))


def j3(pipelines: Pipelines, task: str) -> Finding:
    """Find whether all-reduce is behind with 16 nodes, and first with 64, in every cell of overlap and jitter."""
    stated, (before, last) = CLAIMS["J3"], AROUND

    def cell(overlap: bool, jitter: float) -> Finding:
        behind, first = (
            [race(name, task, nodes, algo, overlap, jitter).check(stated, pipelines, 2, 2) for algo in VARIANTS]
            for name, nodes in (("before", before), ("behind", last))
        )
        return stated.judged([max(behind, key=nearness_above), *first])  # behind one of them, and first of all

    return over_map(cell, remarks.crossover(pipelines, task) + remarks.predicted(pipelines, task))


def ends(task: str) -> list[Contrast]:
    """Compare on 100 nodes the loss of all-reduce with those of the others, and the times to the target."""
    exact = loss(cells(task, LAST, ALL_REDUCE), LONG[task])
    losses = [
        Contrast("loss", f"test loss, all-reduce over {algo}", exact, loss(cells(task, LAST, algo), LONG[task]))
        for algo in VARIANTS
    ]
    return [*losses, *(race("time", task, LAST, algo, True, 0.1) for algo in VARIANTS)]


def periods(task: str, nodes: int = 8) -> list[Contrast]:
    """Compare the samples to the target with tau = 10 and with 1."""

    def compare(name: str) -> Contrast:
        seldom, often = (samples(cell_of(task, nodes, f"{name} tau={tau}"), TARGETS[task]) for tau in (10, 1))
        return Contrast("samples", f"{name}: samples to the target, tau = 10 over tau = 1", seldom, often)

    return [compare(name) for name in ("easgd", "gossip mode=pull", "gossip mode=push")]


def _map_needs(id: str, where: Sequence[tuple[str, int]]) -> tuple[Need, ...]:
    return tuple(
        partial(race(criterion, task, nodes, algo, overlap, jitter).need, CLAIMS[id], 2)
        for task in IMAGES
        for criterion, nodes in where
        for jitter, overlap in CELLS
        for algo in VARIANTS
    )


def _sum_of_logs(checks: Sequence[Check]) -> float:
    return sum(math.log(check.value.median) if check.value.median > 0 else -math.inf for check in checks)


CLAIMS_ABOUT_LEARNING = (
    Claim(CLAIMS["J1"], j1, IMAGES, (*_map_needs("J1", [("sooner", nodes) for nodes in FEW]), *remarks.NEEDS)),
    claim_on_tasks(CLAIMS["J2"], ends),
    Claim(CLAIMS["J3"], j3, IMAGES, _map_needs("J3", [("behind", AROUND[1]), ("before", AROUND[0])])),
    claim_on_tasks(CLAIMS["J4"], periods),
)
