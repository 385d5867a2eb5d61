"""Jin et al. 2016, the claims about learning: who reaches the target first, over overlap, jitter and nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from matplotlib.figure import Figure

from dsgd.report.interval import Estimate
from studies.evidence.paired_t import REPLICATES, interval_of, ratio
from studies.evidence.pipeline import Candidate, Missing, all_of, crossing, losses_around
from studies.evidence.race import Pipelines, RatioCheck, ReplicatePair
from studies.papers.real.tasks import TASKS, stated
from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart
from studies.reproduction.paper import Assumption, Chart, Claim, Paper
from studies.reproduction.verdict import NEARNESS, Check, Finding, over_region

TARGETS: Mapping[str, float] = {"shapes": 0.3, "fashion": 0.4}
FEW, MANY = (4, 8, 16), (32, 64, 100)
AROUND = (16, 64)  # the crossover
LAST, LONG = 100, 5120  # nodes and steps of the losses that are compared
JITTERS = (0.0, 0.1, 0.3, 1.0)
ALL_REDUCE = "sync"
VARIANTS = {
    "easgd": ("easgd tau=1", "easgd tau=10", "easgd tau=10 alpha=0.5"),
    "gossip": tuple(f"gossip mode={mode} tau={tau}" for mode in ("pull", "push") for tau in (1, 10)),
}
DRAWN = {  # contenders of the figures, with their labels, algorithms and line styles
    "sync": ("all-reduce", "sync", 0),
    "dpsgd": ("D-PSGD", "dpsgd", 0),
    "easgd tau=1": ("EASGD, tau = 1", "easgd", 0),
    "easgd tau=10": ("EASGD, tau = 10", "easgd", 1),
    "gossip mode=push tau=1": ("gossip, tau = 1", "gossip", 0),
    "gossip mode=push tau=10": ("gossip, tau = 10", "gossip", 1),
}
LEVELS = {"shapes": (0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3), "fashion": (0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.4)}
CURVED = 8  # nodes of the figure over the level of loss
# numbers of steps that are tried first, a factor of four below T* where that is dear
FIRST_EXACT = {4: 640, 8: 160, 16: 320, 32: 160, 64: 160, 100: 160}
FIRST_LOCAL = {4: 640, 8: 160, 16: 640, 32: 2560, 64: 2560, 100: 2560}


def cells(task: str, nodes: int, algo: str) -> list[Candidate]:
    """Return the variants of an algorithm: on more than 16 nodes those that communicate every ten steps."""
    if algo in (ALL_REDUCE, "dpsgd"):
        return [Candidate(task, algo, nodes, FIRST_EXACT[nodes])]
    names = VARIANTS[algo] if nodes in FEW else [name for name in VARIANTS[algo] if "tau=10" in name]
    return [Candidate(task, name, nodes, FIRST_LOCAL[nodes]) for name in names]


def times(
    task: str, nodes: int, algo: str, overlap: bool, jitter: float, pipelines: Pipelines, replicate: int
) -> ReplicatePair:
    """Return the seconds to the target of all-reduce, and of an algorithm by its variant that tuning prefers."""

    def time_s(name: str) -> float:
        return pipelines.time_s(cells(task, nodes, name), replicate, TARGETS[task], overlap, jitter)

    exact_s, other_s = all_of(partial(time_s, name) for name in (ALL_REDUCE, algo))
    return exact_s, other_s


def race(id: str, criterion: str, task: str, nodes: int, algo: str, overlap: bool, jitter: float) -> RatioCheck:
    """Return the comparison of an algorithm with all-reduce in one cell of the map."""
    what = f"{nodes} nodes: time of all-reduce over that of {algo}"
    return RatioCheck(stated(id), criterion, what, partial(times, task, nodes, algo, overlap, jitter))


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
    need = stated("J1").need or len(FEW)

    def cell(overlap: bool, jitter: float) -> Finding:
        findings = []
        for algo in VARIANTS:
            races = [race("J1", "sooner", task, nodes, algo, overlap, jitter) for nodes in FEW]
            # the claim fails where both algorithms do, each on two of three numbers of nodes
            checks = [comparison.check(pipelines, len(FEW) - need + 1) for comparison in races]
            findings.append(stated("J1").judged(checks))
        return max(findings, key=lambda finding: (NEARNESS.index(finding.verdict), _sum_of_logs(finding.checks)))

    return over_map(cell)


def j2(pipelines: Pipelines, task: str) -> Finding:
    """Compare losses after 5,120 steps, and times to the target, on 100 nodes."""
    losses = _losses_on_last(task)
    races = [race("J2", "time", task, LAST, algo, True, 0.1) for algo in VARIANTS]
    comparisons = [*losses, *races]
    return stated("J2").judged([comparison.check(pipelines, len(comparisons)) for comparison in comparisons])


def j3(pipelines: Pipelines, task: str) -> Finding:
    """Find whether all-reduce is behind with 16 nodes, and first with 64, in every cell of overlap and jitter."""
    before, last = AROUND

    def cell(overlap: bool, jitter: float) -> Finding:
        behind = [race("J3", "before", task, before, algo, overlap, jitter).check(pipelines, 2) for algo in VARIANTS]
        first = [race("J3", "behind", task, last, algo, overlap, jitter).check(pipelines, 2) for algo in VARIANTS]
        # behind one of them, and first of all
        nearest = [max(behind, key=lambda check: check.value.low), max(first, key=lambda check: check.value.high)]
        return stated("J3").judged(nearest)

    return over_map(cell, _crossover(pipelines, task) + _predicted(pipelines, task))


def j4(pipelines: Pipelines, task: str) -> Finding:
    """Compare samples to the target of tau = 1 and 10, on eight nodes."""
    return stated("J4").judged([comparison.check(pipelines, 3) for comparison in _periods(task)])


def _periods(task: str, nodes: int = 8) -> list[RatioCheck]:
    def steps(name: str, pipelines: Pipelines, replicate: int) -> ReplicatePair:
        of_tau = [Candidate(task, f"{name} tau={tau}", nodes, FIRST_LOCAL[nodes]) for tau in (10, 1)]
        seldom, often = all_of(partial(pipelines.steps, cell, replicate, TARGETS[task]) for cell in of_tau)
        return seldom, often

    names = ("easgd", "gossip mode=pull", "gossip mode=push")
    return [
        RatioCheck(
            stated("J4"), "samples", f"{name}: samples to the target, tau = 10 over tau = 1", partial(steps, name)
        )
        for name in names
    ]


def _losses_on_last(task: str) -> list[RatioCheck]:
    """Return the losses on 100 nodes after 5,120 steps: all-reduce over each of the others with tau = 10."""

    def losses(other: Candidate, pipelines: Pipelines, replicate: int) -> ReplicatePair:
        exact = cells(task, LAST, ALL_REDUCE)[0]
        loss, other_loss = all_of(partial(pipelines.loss, cell, replicate, LONG) for cell in (exact, other))
        return loss, other_loss

    return [
        RatioCheck(stated("J2"), "loss", f"test loss, all-reduce over {other.contender}", partial(losses, other))
        for algo in VARIANTS
        for other in cells(task, LAST, algo)
    ]


def needs() -> Iterator[Callable[[Pipelines], None]]:
    """Yield the programs that raise Missing, the most important claims first."""
    for group in (FEW, MANY):
        for task in TASKS:
            for nodes in group:
                for jitter in JITTERS:
                    for overlap in (True, False):
                        for algo in VARIANTS:
                            yield race("J1", "sooner", task, nodes, algo, overlap, jitter).need
    for task in TASKS:
        for comparison in (*_periods(task), *_losses_on_last(task)):
            yield comparison.need
        for nodes in (*FEW, *MANY):
            yield partial(_peers, task, nodes)


def _peers(task: str, nodes: int, pipelines: Pipelines) -> None:
    """Make D-PSGD's pipelines, for the figure."""
    for replicate in range(REPLICATES[0]):
        pipelines.steps(cells(task, nodes, "dpsgd")[0], replicate, TARGETS[task])


def _crossover(pipelines: Pipelines, task: str) -> str:
    """Return in words from which number of nodes on all-reduce is first, at a jitter of 10 % with overlap."""
    try:
        ratios = [(nodes, _best_ratios(pipelines, task, nodes, True, 0.1)) for nodes in (*FEW, *MANY)]
    except Missing:
        return ""
    text = ", ".join(f"{math.exp(sum(map(math.log, each)) / len(each)):.2f} on {nodes}" for nodes, each in ratios)
    sooner = f"At a jitter of 10 % with overlap, time of all-reduce over that of the sooner other: {text} nodes."
    curves = [dict(zip((*FEW, *MANY), each, strict=True)) for each in zip(*(each for _, each in ratios), strict=False)]
    if any(curve[FEW[0]] <= 1 for curve in curves):
        return f"{sooner} All-reduce is first on {FEW[0]} nodes in some replicates: no crossover. "
    interval = interval_of([crossing(curve, 1.0) for curve in curves])
    return f"{sooner} The ratio is 1 on {interval.median:.0f} nodes [{interval.low:.0f}, {interval.high:.0f}]. "


def _predicted(pipelines: Pipelines, task: str) -> str:
    """Return in words T* on 100 nodes as it follows from 16, 32 and 64, beside the measured one."""
    texts = []
    for name in (ALL_REDUCE, "easgd tau=10", "gossip mode=push tau=10"):
        try:
            measured = {nodes: _steps(pipelines, task, name, nodes) for nodes in (16, 32, 64, LAST)}
        except Missing:
            return ""
        known = [(math.log(nodes), math.log(steps)) for nodes, steps in measured.items() if nodes < LAST]
        predicted = math.exp(_line(known, math.log(LAST)))
        texts.append(f"{name} {predicted:,.0f}, measured {measured[LAST]:,.0f}")
    return f"T* on {LAST} nodes as a power law of 16, 32 and 64 predicts it: {'; '.join(texts)}."


def _steps(pipelines: Pipelines, task: str, name: str, nodes: int) -> float:
    """Return the geometric mean of T* over the first replicates. Raises Missing."""
    algo = name.split()[0]
    (cell,) = [cell for cell in cells(task, nodes, algo) if cell.contender == name]
    logs = [math.log(pipelines.steps(cell, replicate, TARGETS[task])) for replicate in range(REPLICATES[0])]
    return math.exp(sum(logs) / len(logs))


def _line(points: Sequence[tuple[float, float]], at: float) -> float:
    """Return the least-squares line through points, at one place."""
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    slope = sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)
    return y + slope * (at - x)


def _best_ratios(pipelines: Pipelines, task: str, nodes: int, overlap: bool, jitter: float) -> list[float]:
    """Return for each replicate the time of all-reduce over that of the sooner other. Raises Missing."""
    pairs = [race("J1", "sooner", task, nodes, algo, overlap, jitter).pairs(pipelines) for algo in VARIANTS]
    return [max(exact / other for exact, other in of_all) for of_all in zip(*pairs, strict=False)]


def _sum_of_logs(checks: Sequence[Check]) -> float:
    return sum(math.log(check.value.median) if check.value.median > 0 else -math.inf for check in checks)


def steps_over_nodes(pipelines: Pipelines) -> Figure | None:
    """Draw T* against the number of nodes, a panel for each task."""
    panels = []
    for task in TASKS:
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
    return chart(panels) if any(line.points for panel in panels for line in panel.lines) else None


def ratio_over_levels(pipelines: Pipelines) -> Figure | None:
    """Draw the steps of each contender over those of all-reduce, from early to late losses, a panel for each task."""
    panels = []
    for task in TASKS:
        exact = cells(task, CURVED, ALL_REDUCE)[0]
        lines = []
        for name, (label, algo, variant) in [*DRAWN.items()][1:]:
            (cell,) = [cell for cell in cells(task, CURVED, algo) if cell.contender == name]
            points = [(level, value) for level in LEVELS[task] if (value := _at_level(pipelines, cell, exact, level))]
            lines.append(ChartLine(label, algo, points, variant))
        title, ratio_label = f"{task}, {CURVED} nodes", "steps over those of all-reduce"
        panels.append(ChartPanel(title, "test loss", ratio_label, lines, level=1.0))
    return chart(panels) if any(line.points for panel in panels for line in panel.lines) else None


def _at_level(pipelines: Pipelines, cell: Candidate, exact: Candidate, level: float) -> Estimate | None:
    values, others = list[float](), list[float]()
    for replicate in range(REPLICATES[-1]):
        try:
            curves = [losses_around(each, replicate, TARGETS[cell.task], pipelines.trials) for each in (cell, exact)]
        except Missing:
            break
        if all(max(curve.values()) > level for curve in curves):
            values.append(crossing(curves[0], level))
            others.append(crossing(curves[1], level))
    return ratio(values, others) if len(values) >= REPLICATES[0] else None


def _known(pipelines: Pipelines, cell: Candidate, replicate: int) -> float | None:
    try:
        return pipelines.steps(cell, replicate, TARGETS[cell.task])
    except Missing:
        return None


PAPER = Paper(
    key="jin2016_real",
    order=1,
    title="How to scale distributed deep learning? Claims about learning",
    reference="Jin, Yuan, Iandola, Keutzer 2016, arXiv 1611.04581.",
    summary=(
        "When EASGD and gossip are ahead of all-reduce, and when behind: over overlap, jitter and the number of nodes, "
        "by [the protocol](../../docs/explanation/papers.md). Times are the steps that an MLP needs times the seconds "
        "that ResNet-18 would take for each."
    ),
    assumptions=(
        Assumption("messages", "ResNet-18, 46.8 MB", "published"),
        Assumption("network", "10 Gbit/s, 50 us", "ours"),
        Assumption("gradient time", "0.2 s, as of 32 images; jitter of 0, 10, 30 and 100 %, log-normal", "ours"),
        Assumption("periods", "tau = 1 and 10; on more than 16 nodes 10", "published"),
        Assumption("momentum", "Nesterov 0.9, local", "published"),
        Assumption("moving rate of EASGD", "0.9 / p, and 0.5", "unconfirmed"),
        Assumption("schedule", "cosine, over the steps of the run", "ours"),
        Assumption("task shapes", "an MLP of 128 on 160,000 generated images of 8 x 8 pixels, batch 8", "ours"),
        Assumption("task fashion", "the same MLP on Fashion-MNIST at 14 x 14 pixels, batch 16", "ours"),
        Assumption("target", "a test loss of 0.3 on shapes, of 0.4 on fashion", "ours"),
    ),
    studies=(),
    claims=tuple(Claim(stated(id), (), judge, TASKS) for id, judge in (("J1", j1), ("J2", j2), ("J3", j3), ("J4", j4))),
    charts=(
        Chart("steps", "Steps of each worker to the target, against the number of nodes", (), steps_over_nodes),
        Chart("levels", "Steps over those of all-reduce, against the level of loss", (), ratio_over_levels),
    ),
    needs=tuple(needs()),
)
