"""Local SGD: what long periods cost, and what all-reduce before them gives back."""

from __future__ import annotations

from studies.evidence.contrast import Pipelines
from studies.evidence.tasks import TASKS
from studies.papers import CLAIMS
from studies.reproduction.paper import Claim, Paper
from studies.reproduction.verdict import Finding, Verdict

ABSENT = (
    "The paper speaks of batches so large that all-reduce generalises worse with them. The batches of these tasks harm "
    "nothing: see [A2](goyal2017.md#a2). So there is no accuracy to be given back."
)


def b5(_: Pipelines, task: str) -> Finding:
    """Say why the claim cannot be tested on a task."""
    return Finding(Verdict.NOT_TESTABLE, (), ABSENT)


PAPER = Paper(
    key="lin2020",
    order=12,
    title="Don't use large mini-batches, use local SGD",
    reference="Lin, Stich, Patel, Jaggi 2020, arXiv 1808.07217; Ortiz et al. 2021, arXiv 2110.08133",
    summary="What long periods of local SGD cost, and whether post-local SGD generalises better than all-reduce.",
    assumptions=(),
    studies=(),
    claims=(Claim(CLAIMS["B5"], (), b5, tuple(TASKS)),),
)
