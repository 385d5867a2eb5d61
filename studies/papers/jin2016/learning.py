"""Judge the claims of Jin et al. about learning: who reaches the target first, over overlap, jitter and nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from statistics import geometric_mean, linear_regression

from matplotlib.figure import Figure

from studies.evidence.claim import checks_of, claim_on_tasks
from studies.evidence.contrast import Contrast, Need, Pipelines, loss, samples, seconds
from studies.evidence.levels import drawn_over_levels, over_levels
from studies.evidence.paired_t import REPLICATES, interval_of
from studies.evidence.pipeline import Candidate, Missing, all_of, crossing
from studies.evidence.tasks import FIRST, IMAGES, TARGETS
from studies.papers import CLAIMS
from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart
from studies.reproduction.paper import Claim
from studies.reproduction.profile import Scores, profile_figure, profiles
from studies.reproduction.verdict import NEARNESS, Check, Finding, nearness_above, over_region

FEW, MANY = (4, 8, 16), (32, 64, 100)
AROUND = (16, 64)  # the crossover
LAST = 100  # nodes of the losses that are compared
LONG = {"shapes": 5120, "fashion": 1280}  # steps of them
JITTERS = (0.0, 0.1, 0.3, 1.0)
ALL_REDUCE = "sync"
VARIANTS = {
    "easgd": ("easgd tau=1", "easgd tau=10", "easgd tau=10 alpha=0.5"),
    "gossip": tuple(f"gossip mode={mode} tau={tau}" for mode in ("pull", "push") for tau in (1, 10)),
}
ON_MANY = {"easgd": ("easgd tau=10 alpha=0.5",), "gossip": ("gossip mode=pull tau=1", "gossip mode=pull tau=10")}
DRAWN = {  # contenders of the figures, with their labels, algorithms and line styles
    "sync": ("all-reduce", "sync", 0),
    "dpsgd": ("D-PSGD", "dpsgd", 0),
    "easgd tau=1": ("EASGD, tau = 1", "easgd", 0),
    "easgd tau=10 alpha=0.5": ("EASGD, tau = 10", "easgd", 1),
    "gossip mode=pull tau=1": ("gossip, tau = 1", "gossip", 0),
    "gossip mode=pull tau=10": ("gossip, tau = 10", "gossip", 1),
}
CURVED = 8  # nodes of the figure over the level of loss
# numbers of steps that are tried first, a factor of four below T* where that is dear
FIRST_EXACT = {4: 640, 8: 160, 16: 320, 32: 160, 64: 160, 100: 160}
FIRST_LOCAL = {4: 640, 8: 160, 16: 640}


def cells(task: str, nodes: int, algo: str) -> list[Candidate]:
    """Return the variants of an algorithm: on more than 16 nodes not those that were later than another on 16."""
    if algo in (ALL_REDUCE, "dpsgd"):
        return [Candidate(task, algo, nodes, FIRST_EXACT[nodes])]
    if nodes in FEW:
        return [Candidate(task, name, nodes, FIRST_LOCAL[nodes]) for name in VARIANTS[algo]]
    return [Candidate(task, name, nodes, FIRST[task] if "tau=10" in name else 640) for name in ON_MANY[algo]]


def _cell(task: str, nodes: int, name: str) -> Candidate:
    """Return the candidate of a contender."""
    (cell,) = [cell for cell in cells(task, nodes, name.split()[0]) if cell.contender == name]
    return cell


def race(criterion: str, task: str, nodes: int, algo: str, overlap: bool, jitter: float) -> Contrast:
    """Compare the seconds to the target of all-reduce, and of an algorithm by its variant that tuning prefers."""
    exact, other = (seconds(cells(task, nodes, name), TARGETS[task], overlap, jitter) for name in (ALL_REDUCE, algo))
    return Contrast(criterion, f"{nodes} nodes: time of all-reduce over that of {algo}", exact, other)


def over_map(judge: Callable[[bool, float], Finding], reason: str = "") -> Finding:
    """Judge every cell of overlap and jitter."""
    return over_region(
        {
            f"jitter {100 * jitter:.0f} %, {'overlap' if overlap else 'no overlap'}": judge(overlap, jitter)
            for jitter in JITTERS
            for overlap in (True, False)
        },
        reason,
    )


def j1(pipelines: Pipelines, task: str) -> Finding:
    """Compare times to the target on few nodes, in every cell of overlap and jitter."""
    stated = CLAIMS["J1"]

    def cell(overlap: bool, jitter: float) -> Finding:
        findings = []
        for algo in VARIANTS:
            races = [race("sooner", task, nodes, algo, overlap, jitter) for nodes in FEW]
            # the claim fails where both algorithms do, each on two of three numbers of nodes
            checks = [comparison.check(stated, pipelines, *checks_of(stated, races)) for comparison in races]
            findings.append(stated.judged(checks))
        return max(findings, key=lambda finding: (NEARNESS.index(finding.verdict), _sum_of_logs(finding.checks)))

    return over_map(cell, _floor(pipelines, task))


def j3(pipelines: Pipelines, task: str) -> Finding:
    """Find whether all-reduce is behind with 16 nodes, and first with 64, in every cell of overlap and jitter."""
    stated, (before, last) = CLAIMS["J3"], AROUND

    def cell(overlap: bool, jitter: float) -> Finding:
        behind, first = (
            [race(name, task, nodes, algo, overlap, jitter).check(stated, pipelines, 2, 2) for algo in VARIANTS]
            for name, nodes in (("before", before), ("behind", last))
        )
        return stated.judged([max(behind, key=nearness_above), *first])  # behind one of them, and first of all

    return over_map(cell, _crossover(pipelines, task) + _predicted(pipelines, task))


def ends(task: str) -> list[Contrast]:
    """Compare on 100 nodes the loss of all-reduce with those of the others, and the times to the target."""
    exact = loss(cells(task, LAST, ALL_REDUCE), LONG[task])
    losses = [
        Contrast("loss", f"test loss, all-reduce over {algo}", exact, loss(cells(task, LAST, algo), LONG[task]))
        for algo in VARIANTS
    ]
    return [*losses, *(race("time", task, LAST, algo, True, 0.1) for algo in VARIANTS)]


def periods(task: str, nodes: int = 8) -> list[Contrast]:
    """Compare the samples to the target with tau = 10 and with 1."""

    def compare(name: str) -> Contrast:
        seldom, often = (
            samples(Candidate(task, f"{name} tau={tau}", nodes, FIRST_LOCAL[nodes]), TARGETS[task]) for tau in (10, 1)
        )
        return Contrast("samples", f"{name}: samples to the target, tau = 10 over tau = 1", seldom, often)

    return [compare(name) for name in ("easgd", "gossip mode=pull", "gossip mode=push")]


def _map_needs(id: str, where: Sequence[tuple[str, int]]) -> tuple[Need, ...]:
    return tuple(
        partial(race(criterion, task, nodes, algo, overlap, jitter).need, CLAIMS[id], 2)
        for task in IMAGES
        for criterion, nodes in where
        for jitter in JITTERS
        for overlap in (True, False)
        for algo in VARIANTS
    )


def _figure_need(task: str, nodes: int, name: str) -> Need:
    """Return a need of three replicates of a contender, for the figures."""
    cell = _cell(task, nodes, name)

    def need(pipelines: Pipelines, _: int) -> None:
        all_of(partial(pipelines.steps, cell, replicate, TARGETS[task]) for replicate in range(REPLICATES[0]))

    return need


def _crossover(pipelines: Pipelines, task: str) -> str:
    """Return in words from which number of nodes on all-reduce is first, at a jitter of 10 % with overlap."""
    try:
        ratios = [(nodes, _best_ratios(pipelines, task, nodes)) for nodes in (*FEW, *MANY)]
    except Missing:
        return ""
    text = ", ".join(f"{geometric_mean(each):.2f} on {nodes}" for nodes, each in ratios)
    sooner = f"At a jitter of 10 % with overlap, time of all-reduce over that of the sooner other: {text} nodes."
    curves = [dict(zip((*FEW, *MANY), each, strict=True)) for each in zip(*(each for _, each in ratios), strict=False)]
    if any(curve[FEW[0]] <= 1 for curve in curves):
        return f"{sooner} All-reduce is first on {FEW[0]} nodes in some replicates: no crossover. "
    if any(curve[LAST] > 1 for curve in curves):
        return f"{sooner} All-reduce is not first on {LAST} nodes in some replicates: no crossover. "
    interval = interval_of([crossing(curve, 1.0) for curve in curves])
    return f"{sooner} The ratio is 1 on {interval.median:.0f} nodes [{interval.low:.0f}, {interval.high:.0f}]. "


def _floor(pipelines: Pipelines, task: str) -> str:
    """Return in words how the steps to the target fall with more workers."""
    texts = []
    for name in (ALL_REDUCE, *chain(*ON_MANY.values())):
        try:
            measured = [(nodes, _steps(pipelines, task, name, nodes)) for nodes in FEW]
        except Missing:
            return ""
        power, _ = linear_regression(*([*map(math.log, column)] for column in zip(*measured, strict=True)))
        texts.append(f"{name} {', '.join(f'{steps:,.0f}' for _, steps in measured)}, as p to the power {power:.2f}")
    return f"Steps of each worker to the target on 4, 8 and 16 nodes: {'; '.join(texts)}."


def _predicted(pipelines: Pipelines, task: str) -> str:
    """Return in words T* on 100 nodes as it follows from 16, 32 and 64, beside the measured one."""
    texts = []
    for name in (ALL_REDUCE, *chain(*ON_MANY.values())):
        try:
            measured = {nodes: _steps(pipelines, task, name, nodes) for nodes in (16, 32, 64, LAST)}
        except Missing:
            return ""
        known = [(nodes, steps) for nodes, steps in measured.items() if nodes < LAST]
        power, at_one = linear_regression(*([*map(math.log, column)] for column in zip(*known, strict=True)))
        predicted = math.exp(at_one + power * math.log(LAST))
        texts.append(f"{name} {predicted:,.0f}, measured {measured[LAST]:,.0f}")
    return f"T* on {LAST} nodes as a power law of 16, 32 and 64 predicts it: {'; '.join(texts)}."


def _steps(pipelines: Pipelines, task: str, name: str, nodes: int) -> float:
    """Return the geometric mean of T* over the first replicates. Raises Missing."""
    cell = _cell(task, nodes, name)
    return geometric_mean(
        pipelines.steps(cell, replicate, TARGETS[task])[0].value for replicate in range(REPLICATES[0])
    )


def _best_ratios(pipelines: Pipelines, task: str, nodes: int) -> list[float]:
    """Return for each replicate the time of all-reduce over that of the sooner other, with overlap and a jitter of
    10 %. Raises Missing."""
    pairs = [race("before", task, nodes, algo, True, 0.1).pairs(pipelines) for algo in VARIANTS]
    return [max(exact.value / other.value for exact, other in of_all) for of_all in zip(*pairs, strict=False)]


def _sum_of_logs(checks: Sequence[Check]) -> float:
    return sum(math.log(check.value.median) if check.value.median > 0 else -math.inf for check in checks)


def steps_over_nodes(pipelines: Pipelines) -> Figure | None:
    """Draw T* against the number of nodes, a panel for each task."""
    panels = []
    for task in IMAGES:
        lines = []
        for name, (label, algo, variant) in DRAWN.items():
            points = []
            for nodes in (*FEW, *MANY):
                alike = [cell for cell in cells(task, nodes, algo) if cell.contender == name]
                values = [_known(pipelines, cell, replicate) for cell in alike for replicate in range(REPLICATES[-1])]
                if len(known := [value for value in values if value is not None]) >= REPLICATES[0]:
                    points.append((float(nodes), interval_of(known)))
            if points:
                lines.append(ChartLine(label, algo, points, variant))
        panels.append(ChartPanel(task, "nodes", "steps of each worker to the target", lines, log_x=True, log_y=True))
    whole = [any(len(line.points) >= len(FEW) for line in panel.lines) for panel in panels]
    return chart(panels) if all(whole) else None


def ratio_over_levels(pipelines: Pipelines) -> Figure | None:
    """Draw the steps of each contender over those of all-reduce, from early to late losses, a panel for each task."""

    def lines(task: str) -> list[ChartLine]:
        exact = _cell(task, CURVED, ALL_REDUCE)
        return [
            ChartLine(label, algo, over_levels(_cell(task, CURVED, name), exact, pipelines), variant)
            for name, (label, algo, variant) in DRAWN.items()
            if name != ALL_REDUCE
        ]

    return drawn_over_levels(f"{CURVED} nodes", "steps over those of all-reduce", lines, level=1.0)


def profile(pipelines: Pipelines) -> Figure | None:
    """Draw in which share of the settings each algorithm is within a factor of the soonest."""

    def settings(task: str) -> list[Scores]:
        cells = ((nodes, overlap, jitter) for nodes in (*FEW, *MANY) for jitter in JITTERS for overlap in (True, False))
        return [scores for cell in cells if (scores := _seconds(pipelines, task, *cell))]

    by_task = [settings(task) for task in IMAGES]
    of_each = profiles([scores for of_task in by_task for scores in of_task]) if all(by_task) else []
    return profile_figure(of_each) if of_each else None


def _seconds(pipelines: Pipelines, task: str, nodes: int, overlap: bool, jitter: float) -> dict[str, float]:
    """Return the seconds to the target of each algorithm, as geometric means over replicates; none if some miss."""
    try:
        races = {algo: race("sooner", task, nodes, algo, overlap, jitter).pairs(pipelines) for algo in VARIANTS}
    except Missing:
        return {}
    times = {algo: [other.value for _, other in pairs] for algo, pairs in races.items()}
    times[ALL_REDUCE] = [exact.value for exact, _ in races["gossip"]]
    return {algo: geometric_mean(values) for algo, values in times.items()}


def _known(pipelines: Pipelines, cell: Candidate, replicate: int) -> float | None:
    try:
        return pipelines.steps(cell, replicate, TARGETS[cell.task])[0].value
    except Missing:
        return None


CLAIMS_ABOUT_LEARNING = (
    Claim(CLAIMS["J1"], (), j1, IMAGES, _map_needs("J1", [("sooner", nodes) for nodes in FEW])),
    claim_on_tasks(CLAIMS["J2"], ends),
    Claim(CLAIMS["J3"], (), j3, IMAGES, _map_needs("J3", [("behind", AROUND[1]), ("before", AROUND[0])])),
    claim_on_tasks(CLAIMS["J4"], periods),
)
SHOWN = tuple(
    _figure_need(task, nodes, name)
    for nodes in (*FEW, *MANY)
    for task in IMAGES
    for name in DRAWN
    if nodes in FEW or name != "easgd tau=1"
)
