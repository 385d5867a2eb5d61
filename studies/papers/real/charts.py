"""The figures of the claims about learning, one for each task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from dsgd.report.contest import Contender, contest, final_loss
from dsgd.report.interval import estimate
from dsgd.report.winner_map import map_cell, map_figure
from studies.papers.real.tasks import TASKS, sync
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


def soonest_map(conditions: Mapping[float, Sequence[Contender]]) -> Figure:
    """Draw who reaches the target first, by the number of nodes, the jitter and the form of all-reduce. Of the variants
    of an algorithm only the soonest competes. conditions: all contenders under each jitter."""
    cells = []
    for jitter, contenders in conditions.items():
        for nodes in {contender.nodes for contender in contenders}:
            for overlap in (True, False):
                others = [each for each in contenders if each.nodes == nodes and each.algo != "sync"]
                racing = [sync(contenders, nodes, overlap), *others]
                condition = f"{100 * jitter:3.0f} %, {'overlap' if overlap else 'no overlap'}"  # sorts by the jitter
                rivals = contest(_soonest_variants(racing))
                cells.append(map_cell({"nodes": nodes, "jitter and all-reduce": condition}, rivals))
    return map_figure(cells)


def _soonest_variants(contenders: Sequence[Contender]) -> list[Contender]:
    """Return of each algorithm the contender that is first among its own."""
    by_algo: dict[str, Contender] = {}
    for standing in contest(contenders).standings:
        by_algo.setdefault(standing.contender.algo, standing.contender)
    return [*by_algo.values()]
