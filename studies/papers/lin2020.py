"""Local SGD: what long periods cost, and what all-reduce before them gives back."""

from __future__ import annotations

from studies.evidence.contrast import Pipelines
from studies.evidence.tasks import IMAGES
from studies.papers import CLAIMS, described
from studies.reproduction.paper import Claim
from studies.reproduction.verdict import Finding, Verdict

ABSENT = (
    "The paper speaks of batches so large that all-reduce generalises worse with them, at the rate that suits it. "
    "Such a batch was not found on these tasks, whose workers have batches of 8 and 16. So there is no accuracy to be "
    "given back. Whether longer periods cost is half of the claim; it is not tested alone."
)


def b5(_: Pipelines, task: str) -> Finding:
    """Say why the claim cannot be tested on a task."""
    return Finding(Verdict.NOT_TESTABLE, (), ABSENT)


PAPER = described("lin2020", Claim(CLAIMS["B5"], b5, IMAGES))
