"""The figures of pipelines: T* over the number of nodes and the level of loss, and the profile."""

from __future__ import annotations

import itertools
from contextlib import suppress
from statistics import geometric_mean

from matplotlib.figure import Figure

from studies.evidence.contrast import Contrast, need_of, steps
from studies.evidence.levels import LEVELS, drawn_over_levels, over_levels
from studies.evidence.paired_t import REPLICATES, interval_of
from studies.evidence.pipeline import Candidate, Missing, Pipelines
from studies.evidence.tasks import BATCHES, IMAGES, TARGETS
from studies.papers.jin2016.contenders import ALL_REDUCE, CELLS, FEW, MANY, VARIANTS, cell_of, race
from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart
from studies.reproduction.profile import profile_figure, profiles

DRAWN = {  # contenders of the figures, with their labels, algorithms and line styles
    "sync": ("all-reduce", "sync", 0),
    "dpsgd": ("D-PSGD", "dpsgd", 0),
    "easgd tau=1": ("EASGD, tau = 1", "easgd", 0),
    "easgd tau=10 alpha=0.5": ("EASGD, tau = 10", "easgd", 1),
    "gossip mode=pull tau=1": ("gossip, tau = 1", "gossip", 0),
    "gossip mode=pull tau=10": ("gossip, tau = 10", "gossip", 1),
}
LARGER = 4  # times the batch, in the second row of the figure over nodes
CURVED = 8  # nodes of the figure over the level of loss
# nodes, overlap and jitter of the profile
PROFILED = [(nodes, overlap, jitter) for nodes in (*FEW, *MANY) for jitter, overlap in CELLS]


def steps_over_nodes(pipelines: Pipelines) -> Figure | None:
    """Draw T* against the number of nodes, a panel for each task and size of batch that has enough runs."""
    panels = []
    for larger in (1, LARGER):
        of_size = [_steps_panel(pipelines, task, larger) for task in IMAGES]
        if all(any(len(line.points) >= len(FEW) for line in panel.lines) for panel in of_size):
            panels += of_size
    return chart(*panels) if panels else None


def _steps_panel(pipelines: Pipelines, task: str, larger: int) -> ChartPanel:
    """Return the panel of a task. larger: so many times the batch."""
    lines = []
    for name, pairs in itertools.groupby(drawn(larger), key=lambda pair: pair[0]):
        points = []
        for _, nodes in pairs:
            values = _known(pipelines, cell_of(task, nodes, name, larger))
            if len(values) >= REPLICATES[0]:
                points.append((float(nodes), interval_of(values)))
        label, algo, variant = DRAWN[name]
        if points:
            lines.append(ChartLine(label, algo, points, variant))
    title = f"{task}, batch {larger * BATCHES[task]}"
    return ChartPanel(title, "nodes", "steps of each worker to the target", lines, log_x=True, log_y=True)


def drawn(larger: int) -> list[tuple[str, int]]:
    """Return the contenders of the figure over nodes, each with every number of nodes. larger: so many times the batch,
    with few nodes alone and without what is late with few."""
    if larger > 1:
        return [(name, nodes) for name in DRAWN if not name.endswith("tau=1") for nodes in FEW]
    return [(name, nodes) for name in DRAWN for nodes in (*FEW, *MANY) if nodes in FEW or name != "easgd tau=1"]


def ratio_over_levels(pipelines: Pipelines) -> Figure | None:
    """Draw the steps of each contender over those of all-reduce, from early to late losses, a panel for each task."""

    def lines(task: str) -> list[ChartLine]:
        exact = cell_of(task, CURVED, ALL_REDUCE)
        return [
            ChartLine(label, algo, over_levels(cell_of(task, CURVED, name), exact, pipelines), variant)
            for name, (label, algo, variant) in DRAWN.items()
            if name != ALL_REDUCE
        ]

    return drawn_over_levels(f"{CURVED} nodes", "steps over those of all-reduce", lines, level=1.0)


def profile(pipelines: Pipelines) -> Figure | None:
    """Draw in which share of the settings each algorithm is within a factor of the soonest."""
    by_task = [[s for setting in PROFILED if (s := _seconds(pipelines, task, *setting))] for task in IMAGES]
    of_each = profiles([scores for of_task in by_task for scores in of_task]) if all(by_task) else []
    return profile_figure(of_each) if of_each else None


def _seconds(pipelines: Pipelines, task: str, nodes: int, overlap: bool, jitter: float) -> dict[str, float]:
    """Return the seconds to the target of each algorithm, as geometric means over replicates; none if some miss."""
    try:
        races = {algo: duel.pairs(pipelines) for algo, duel in _races(task, nodes, overlap, jitter).items()}
    except Missing:
        return {}
    times = {algo: [other.value for _, other in pairs] for algo, pairs in races.items()}
    times[ALL_REDUCE] = [exact.value for exact, _ in races["gossip"]]
    return {algo: geometric_mean(values) for algo, values in times.items()}


def _races(task: str, nodes: int, overlap: bool, jitter: float) -> dict[str, Contrast]:
    """Return the race of each algorithm with all-reduce in one setting."""
    return {algo: race("sooner", task, nodes, algo, overlap, jitter) for algo in VARIANTS}


def _known(pipelines: Pipelines, cell: Candidate) -> list[float]:
    """Return T* of each replicate that has been made."""
    values = []
    for replicate in range(REPLICATES[-1]):
        with suppress(Missing):
            values.append(pipelines.steps(cell, replicate, TARGETS[cell.task])[0].value)
    return values


STEPS_SHOWN = tuple(
    need_of(steps(cell_of(task, nodes, name, larger), TARGETS[task]))
    for larger in (1, LARGER)
    for name, nodes in sorted(drawn(larger), key=lambda pair: pair[1])
    for task in IMAGES
)
LEVELS_SHOWN = tuple(
    need_of(steps(cell_of(task, CURVED, name), level)) for name in DRAWN for task in IMAGES for level in LEVELS[task]
)
PROFILE_SHOWN = tuple(
    need_of(side)
    for task in IMAGES
    for setting in PROFILED
    for duel in _races(task, *setting).values()
    for side in (duel.first, duel.second)
)
