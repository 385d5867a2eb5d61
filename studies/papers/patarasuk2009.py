"""Patarasuk and Yuan 2009: all-reduce around a ring sends as little as possible."""

from __future__ import annotations

from matplotlib.figure import Figure

from studies.papers import CLAIMS, described
from studies.reproduction.chart_panels import FORMULA, ChartLine, ChartPanel, chart
from studies.reproduction.paper import Chart, Claim, Evidence, Study
from studies.reproduction.verdict import Finding, exactly

STEPS = 3
MESSAGE = 4 * 102_400  # bytes: 102,400 numbers of 32 bits


def a1(evidence: Evidence) -> Finding:
    """Count the bytes of all messages that the busiest node sends in an all-reduce."""
    checks = []
    for run in evidence["messages"].runs:
        p = run.setting("nodes")
        sent = run.final("bytes_sent_max_node") / STEPS / MESSAGE
        what = f"p = {p}: sent by the busiest node, in vectors"
        checks.append(CLAIMS["A1"].check("vectors", what, sent, 2 * (p - 1) / p))
    return CLAIMS["A1"].judged(
        checks, "Every message around the ring is simulated, through the ports of its two nodes."
    )


def sent(evidence: Evidence) -> Figure:
    """Draw the bytes of the busiest node against the number of nodes."""
    runs = evidence["messages"].runs
    measured = [
        (float(run.setting("nodes")), exactly(run.final("bytes_sent_max_node") / STEPS / MESSAGE)) for run in runs
    ]
    lines = [
        ChartLine("messages of a simulated ring", "sync", measured),
        ChartLine("2 (p - 1) / p", FORMULA, [(p, exactly(2 * (p - 1) / p)) for p, _ in measured]),
    ]
    return chart(
        [ChartPanel("ring all-reduce, the busiest node", "nodes", "sent in an all-reduce (vectors)", lines, log_x=True)]
    )


PAPER = described(
    "patarasuk2009",
    studies=(
        Study(
            "messages",
            (
                "algo=sync",
                "algo.overlap=false",
                "nodes=2,4,8,16,32,64,100,128",
                "engine=sim",
                "engine.gradients=none",
                "cluster.gradient_s=0.1",
                "cluster.collective=ring",
                "cluster.collective_messages=true",
                f"cluster.message_bytes={MESSAGE}",
                "budget.epochs=null",
                f"budget.steps={STEPS}",
            ),
        ),
    ),
    claims=(Claim(CLAIMS["A1"], ("messages",), a1),),
    charts=(Chart("sent", "Sent by the busiest node against nodes", ("messages",), sent),),
)
