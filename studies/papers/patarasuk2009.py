"""Patarasuk and Yuan 2009: all-reduce around a ring sends as little as possible."""

from __future__ import annotations

from matplotlib.figure import Figure

from studies.papers import CLAIMS, described
from studies.reproduction.chart_panels import FORMULA, ChartPanel, chart, line_of
from studies.reproduction.paper import Claim, Evidence
from studies.reproduction.verdict import Finding

STEPS = 3
MESSAGE = 4 * 102_400  # bytes: 102,400 numbers of 32 bits


def a1(evidence: Evidence) -> Finding:
    """Count the bytes of all messages that the busiest node sends in an all-reduce."""
    checks = [
        CLAIMS["A1"].check("vectors", f"p = {p}: sent by the busiest node, in vectors", vectors, 2 * (p - 1) / p)
        for p, vectors in _vectors_sent(evidence).items()
    ]
    return CLAIMS["A1"].judged(checks)


def sent(evidence: Evidence) -> Figure:
    """Draw the bytes of the busiest node against the number of nodes."""
    measured = _vectors_sent(evidence)
    lines = [
        line_of("messages of a simulated ring", "sync", measured.items()),
        line_of("2 (p - 1) / p", FORMULA, [(p, 2 * (p - 1) / p) for p in measured]),
    ]
    return chart(
        ChartPanel("ring all-reduce, the busiest node", "nodes", "sent in an all-reduce (vectors)", lines, log_x=True)
    )


def _vectors_sent(evidence: Evidence) -> dict[int, float]:
    """Return what the busiest node sends in an all-reduce, in vectors, by the number of nodes."""
    runs = evidence["messages"].runs
    return {run.setting("nodes"): run.final("bytes_sent_max_node") / STEPS / MESSAGE for run in runs}


PAPER = described("patarasuk2009", Claim(CLAIMS["A1"], a1), charts={"sent": sent})
