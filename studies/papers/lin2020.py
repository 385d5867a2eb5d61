"""Local SGD: what long periods cost, and what all-reduce before them gives back."""

from __future__ import annotations

from studies.evidence.pipeline import Pipelines
from studies.evidence.tasks import IMAGES
from studies.papers import CLAIMS, described
from studies.reproduction.paper import Claim
from studies.reproduction.verdict import Finding, Verdict


def b5(_: Pipelines, task: str) -> Finding:
    """Say why the claim cannot be tested on a task."""
    return Finding(Verdict.NOT_TESTABLE, reason=CLAIMS["B5"].reason)


PAPER = described("lin2020", Claim(CLAIMS["B5"], b5, IMAGES))
