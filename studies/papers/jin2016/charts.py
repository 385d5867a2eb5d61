"""The figure of the server."""

from __future__ import annotations

from matplotlib.figure import Figure

from studies.papers.jin2016.studies import BYTES_PER_S, GRADIENT_S, MESSAGE
from studies.reproduction.chart_panels import FORMULA, ChartLine, ChartPanel, chart
from studies.reproduction.paper import Evidence
from studies.reproduction.verdict import exactly


def server_throughput(evidence: Evidence) -> Figure:
    """Draw the samples per second behind one server against the number of nodes."""
    lines = []
    for variant, tau in enumerate((1, 10)):
        runs = evidence["served_easgd"].where(algo__tau=tau)
        points = [(float(run.setting("nodes")), exactly(run.final("samples") / run.final("time_s"))) for run in runs]
        lines.append(ChartLine(f"easgd, tau = {tau}", "easgd", points, variant))
    runs = evidence["served_downpour"].runs
    points = [(float(run.setting("nodes")), exactly(run.final("samples") / run.final("time_s"))) for run in runs]
    lines.append(ChartLine("downpour", "downpour", points))
    batch = runs[0].setting("batch_size")
    bound = [(1.0, exactly(batch * BYTES_PER_S / MESSAGE)), (100.0, exactly(batch * BYTES_PER_S / MESSAGE))]
    ideal = [(1.0, exactly(batch / GRADIENT_S)), (100.0, exactly(100 * batch / GRADIENT_S))]
    lines += [ChartLine("port of the server, tau = 1", FORMULA, bound), ChartLine("no communication", FORMULA, ideal)]
    return chart(
        [ChartPanel("10 Gbit/s, 46.8 MB", "nodes", "samples per virtual second", lines, log_x=True, log_y=True)]
    )
