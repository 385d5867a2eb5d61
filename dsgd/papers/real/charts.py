"""The figures of the claims about learning, one for each task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from dsgd.papers.real.tasks import TASKS
from dsgd.report.contest import Contender, final_loss
from dsgd.report.interval import Estimate, estimate
from dsgd.reproduction.charts import ChartLine, ChartPanel, chart
from dsgd.reproduction.logged import Logged
from dsgd.reproduction.paired import ratio
from dsgd.reproduction.paper import Chart, Evidence, of_task

Draw = Callable[[Evidence, str], Figure]  # of a task


def on_each_task(name: str, caption: str, studies: Callable[[str], Sequence[str]], draw: Draw) -> tuple[Chart, ...]:
    """Return a figure for each task. studies: returns whose runs it needs on a task."""

    def chart_of(task: str) -> Chart:
        needed = tuple(of_task(study, task) for study in studies(task))
        return Chart(of_task(name, task), f"{caption}, {task}", needed, lambda evidence: draw(evidence, task))

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


def advantage_map(conditions: Mapping[str, Sequence[Contender]], algos: Sequence[str]) -> Figure:
    """Draw how many times as soon as all-reduce each algorithm, in its best form, reaches the target, against nodes: a
    panel for each condition and each form of all-reduce."""
    panels = []
    for overlap in (True, False):
        for name, contenders in conditions.items():
            lines = [ChartLine(algo, algo, _advantages(contenders, algo, overlap)) for algo in algos]
            title = f"{name}, {'overlap' if overlap else 'no overlap'}"
            panels.append(
                ChartPanel(title, "nodes", "time of sync over theirs", lines, log_x=True, log_y=True, level=1.0)
            )
    return chart(panels, ["above the dashed line the algorithm, in its best form, is before all-reduce"])


def _advantages(contenders: Sequence[Contender], algo: str, overlap: bool) -> list[tuple[float, Estimate]]:
    points = []
    for nodes in sorted({contender.nodes for contender in contenders}):
        on_nodes = [contender for contender in contenders if contender.nodes == nodes]
        (exact,) = (
            contender
            for contender in on_nodes
            if contender.algo == "sync" and _setting(contender, "algo.overlap") == overlap
        )
        ratios = [ratio(exact, contender, rule=None) for contender in on_nodes if contender.algo == algo]
        if ratios:
            points.append((float(nodes), max(ratios, key=lambda value: value.median)))
    return points


def _setting(contender: Contender, key: str) -> object:
    return contender.runs[0].setting(key)
