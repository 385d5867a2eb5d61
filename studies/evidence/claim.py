"""Make claims about learning of the contrasts by which they are judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from studies.evidence.contrast import Contrast
from studies.evidence.pipeline import Pipelines
from studies.evidence.tasks import IMAGES
from studies.reproduction.criterion import Statement
from studies.reproduction.paper import Claim
from studies.reproduction.verdict import Finding, over_region

Cells = Mapping[str, Sequence[Contrast]]  # of a claim on one task: under each condition, by its name


def claim_on_tasks(
    stated: Statement, contrasts: Callable[[str], Sequence[Contrast]], tasks: Sequence[str] = IMAGES
) -> Claim:
    """Return a claim that is judged by contrasts. contrasts: returns those of a task."""
    return claim_over_conditions(stated, lambda task: {"": contrasts(task)}, tasks)


def claim_over_conditions(stated: Statement, cells: Callable[[str], Cells], tasks: Sequence[str] = IMAGES) -> Claim:
    """Return a claim that is judged by contrasts under several conditions. cells: returns those of a task."""

    def judge(pipelines: Pipelines, task: str) -> Finding:
        findings = {
            name: stated.judged([each.check(stated, pipelines, *checks_of(stated, contrasts)) for each in contrasts])
            for name, contrasts in cells(task).items()
        }
        return findings.get("") or over_region(findings)

    needs = [
        partial(each.need, stated, max(checks_of(stated, group)))
        for task in tasks
        for group in cells(task).values()
        for each in group
    ]
    return Claim(stated, judge, tuple(tasks), tuple(needs))


def checks_of(stated: Statement, contrasts: Sequence[Contrast]) -> tuple[int, int]:
    """Return how many checks there are of which each could make a claim pass, and fail: where all must pass, one, and
    all of them. Each cell of a map stands for itself."""
    need = stated.need or len(contrasts)
    return len(contrasts) - need + 1, need
