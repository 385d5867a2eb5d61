"""Patarasuk and Yuan 2009: all-reduce around a ring sends as little as possible."""

from __future__ import annotations

from studies.papers import CLAIMS, described
from studies.reproduction.paper import Claim, Evidence
from studies.reproduction.verdict import Finding

STEPS = 3
MESSAGE = 4 * 102_400  # bytes: 102,400 numbers of 32 bits


def a1(evidence: Evidence) -> Finding:
    """Count the bytes of all messages that the busiest node sends in an all-reduce."""
    checks = []
    for run in evidence["messages"].runs:
        p, vectors = run.setting("nodes"), run.final("bytes_sent_max_node") / STEPS / MESSAGE
        what = f"p = {p}: sent by the busiest node, in vectors"
        checks.append(CLAIMS["A1"].check("vectors", what, vectors, 2 * (p - 1) / p))
    return CLAIMS["A1"].judged(checks)


PAPER = described("patarasuk2009", Claim(CLAIMS["A1"], a1))
