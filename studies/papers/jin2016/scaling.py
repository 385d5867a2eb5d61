"""Say in words how T* goes on with more workers, and where all-reduce comes first."""

from __future__ import annotations

import math
from itertools import chain
from statistics import geometric_mean, linear_regression

from studies.evidence.contrast import Pipelines
from studies.evidence.paired_t import interval_of
from studies.evidence.pipeline import Missing, crossing
from studies.evidence.tasks import TARGETS
from studies.papers.jin2016.contenders import ALL_REDUCE, FEW, LAST, MANY, ON_MANY, VARIANTS, cell_of, race


def floor(pipelines: Pipelines, task: str) -> str:
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


def crossover(pipelines: Pipelines, task: str) -> str:
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


def predicted(pipelines: Pipelines, task: str) -> str:
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
    cell = cell_of(task, nodes, name)
    return geometric_mean(
        pipelines.steps(cell, replicate, TARGETS[task])[0].value for replicate in range(pipelines.counts[0])
    )


def _best_ratios(pipelines: Pipelines, task: str, nodes: int) -> list[float]:
    """Return for each replicate the time of all-reduce over that of the sooner other, with overlap and a jitter of
    10 %. Raises Missing."""
    pairs = [race("before", task, nodes, algo, True, 0.1).pairs(pipelines) for algo in VARIANTS]
    return [max(exact.value / other.value for exact, other in of_all) for of_all in zip(*pairs, strict=False)]
