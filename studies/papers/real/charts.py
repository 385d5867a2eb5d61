"""The figures of the claims about learning, one for each task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from dsgd.report.contest import final_loss
from dsgd.report.interval import estimate
from studies.papers.real.tasks import TASKS
from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Chart, Evidence, of_task

Draw = Callable[[Evidence, str], Figure]  # of a task


def on_each_task(
    name: str, caption: str, studies: Callable[[str], Sequence[str]], draw: Draw, more: Sequence[str] = ()
) -> tuple[Chart, ...]:
    """Return a figure for each task. studies: returns whose runs it needs on a task. more: whose runs it shows as well,
    once they are run."""

    def chart_of(task: str) -> Chart:
        needed, later = (tuple(of_task(study, task) for study in names) for names in (studies(task), more))
        return Chart(of_task(name, task), f"{caption}, {task}", needed, lambda evidence: draw(evidence, task), later)

    return tuple(chart_of(task) for task in TASKS)


def losses_over_rates(logged: Logged) -> Figure:
    """Draw the test loss at the end against the learning rate, of every algorithm of a grid."""
    lines = []
    for algo in logged.values("algo"):
        points = [
            (float(rate), estimate([final_loss(run) for run in logged.where(algo=algo, optimizer__lr=rate)]))
            for rate in logged.values("optimizer.lr")
        ]
        lines.append(ChartLine(algo, algo, points))
    return chart([ChartPanel("", "learning rate", "test loss at the end", lines, log_x=True, log_y=True)])
