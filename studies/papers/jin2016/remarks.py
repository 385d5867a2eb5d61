"""Say in words what the cells of J1 and J3 do not: how T* goes on with more workers, where all-reduce comes first, and
what the claims owe to the jitter of training and to the network that learns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import truediv
from statistics import geometric_mean, linear_regression

from studies.evidence.contrast import Measure, at_once, first_replicates, need_of, seconds, steps
from studies.evidence.paired_t import interval_of
from studies.evidence.pipeline import Candidate, Measurement, Missing, Pipelines, crossing, deepest, outcome_of
from studies.evidence.tasks import IMAGES, TARGETS, contender
from studies.papers.jin2016.contenders import ALL_REDUCE, FEW, LAST, MANY, ON_MANY, VARIANTS, cell_of, race
from studies.reproduction.pages import shown

LOCAL = tuple(chain(*ON_MANY.values()))
JITTERED = 16  # nodes
FULL = "cluster.jitter=1"  # of training, where all others have 10 %
SPOT, SPOT_NODES = "resnet8", 8
SPOT_RIVALS = ("easgd tau=10", "gossip mode=push tau=1")
SPOT_FIRST = {ALL_REDUCE: 640, **dict.fromkeys(SPOT_RIVALS, 1280)}  # steps that are tried first


def floor(pipelines: Pipelines, task: str) -> str:
    """Return in words how the steps to the target fall with more workers."""
    texts = []
    for name, curve in _curves(pipelines, task, FEW).items():
        needed = ", ".join(f"{steps_of_each:,.0f}" for steps_of_each in curve.values())
        texts.append(f"{name} {needed}, as p to the power {_power_law(curve)[0]:.2f}")
    return f"Steps of each worker to the target on 4, 8 and 16 nodes: {'; '.join(texts)}." if texts else ""


def predicted(pipelines: Pipelines, task: str) -> str:
    """Return in words T* on 100 nodes as it follows from 16, 32 and 64, beside the measured one."""
    texts = []
    for name, curve in _curves(pipelines, task, (16, 32, 64, LAST)).items():
        measured = curve.pop(LAST)
        power, at_one = _power_law(curve)
        texts.append(f"{name} {math.exp(at_one + power * math.log(LAST)):,.0f}, measured {measured:,.0f}")
    return f"T* on {LAST} nodes by a power law through 16, 32 and 64: {'; '.join(texts)}." if texts else ""


def _curves(pipelines: Pipelines, task: str, numbers: Sequence[int]) -> dict[str, dict[int, float]]:
    """Return T* of each contender on these numbers of nodes, the geometric mean over the first replicates; nothing
    where some are missing."""

    def needed(name: str, nodes: int) -> float:
        return geometric_mean(first_replicates(steps(cell_of(task, nodes, name), TARGETS[task]), pipelines))

    try:
        return {name: {nodes: needed(name, nodes) for nodes in numbers} for name in (ALL_REDUCE, *LOCAL)}
    except Missing:
        return {}


def _power_law(curve: Mapping[int, float]) -> tuple[float, float]:
    """Return the power of p with which T* grows, and the logarithm of T* at p = 1."""
    power, at_one = linear_regression([*map(math.log, curve)], [*map(math.log, curve.values())])
    return power, at_one


def crossover(pipelines: Pipelines, task: str) -> str:
    """Return in words from which number of nodes on all-reduce is first, at a jitter of 10 % with overlap."""
    try:
        ratios = {nodes: _best_ratios(pipelines, task, nodes) for nodes in (*FEW, *MANY)}
    except Missing:
        return ""
    text = ", ".join(f"{geometric_mean(each):.2f} on {nodes}" for nodes, each in ratios.items())
    sooner = f"At a jitter of 10 % with overlap, time of all-reduce over that of the sooner other: {text} nodes."
    curves = [dict(zip(ratios, each, strict=True)) for each in zip(*ratios.values(), strict=False)]
    if any(curve[FEW[0]] <= 1 for curve in curves):
        return f"{sooner} On {FEW[0]} nodes all-reduce is first already, in some replicates: no crossover is seen. "
    if any(curve[LAST] > 1 for curve in curves):
        return f"{sooner} All-reduce is not first on {LAST} nodes in some replicates: no crossover. "
    interval = interval_of([crossing(curve, 1.0) for curve in curves])
    return f"{sooner} The ratio is 1 on {interval.median:.0f} nodes [{interval.low:.0f}, {interval.high:.0f}]. "


def _best_ratios(pipelines: Pipelines, task: str, nodes: int) -> list[float]:
    """Return for each replicate the time of all-reduce over that of the sooner other, with overlap and a jitter of
    10 %. Raises Missing."""
    pairs = [race("before", task, nodes, algo, True, 0.1).pairs(pipelines) for algo in VARIANTS]
    return [max(exact.value / other.value for exact, other in of_all) for of_all in zip(*pairs, strict=False)]


def jittered(pipelines: Pipelines, task: str) -> str:
    """Return in words how the loss changes where gradient times vary more in training; empty without the runs."""
    texts = _texts({name: _lost_by_jitter(task, name) for name in LOCAL}, pipelines)
    return texts and (
        f" All are trained at a jitter of 10 %. Where it is 100 % in training as well, with {JITTERED} nodes and the "
        f"same rate and steps, the test loss is so many times as high: {texts}. T* was not measured there."
    )


def spot_check(pipelines: Pipelines, task: str) -> str:
    """Return in words the race of a ResNet on the real images; empty for generated ones, and without the runs."""
    texts = _texts({name: _spot_race(name) for name in SPOT_RIVALS}, pipelines) if task == "fashion" else ""
    return texts and (
        f" Spot check by a ResNet-8 of 8 channels on the same images, to a test loss of {TARGETS[SPOT]:g} with "
        f"{SPOT_NODES} nodes, a jitter of 10 % and overlap: time of all-reduce over that of {texts}."
    )


def _lost_by_jitter(task: str, name: str) -> Measure:
    """Measure the loss of a contender that is trained at full jitter over the usual one, after the most steps of T*."""

    def loss_with(option: str) -> Measure:
        def measure(pipelines: Pipelines, replicate: int) -> Measurement:
            usual = deepest(cell_of(task, JITTERED, name), replicate, TARGETS[task], pipelines.trials)
            trial = replace(usual, contender=contender(name, option))
            return Measurement(outcome_of(trial, pipelines.trials).loss)

        return measure

    return at_once([loss_with(FULL), loss_with("")], truediv)


def _spot_race(rival: str) -> Measure:
    """Measure the seconds of all-reduce over those of a rival, to the target of the spot check."""
    cells = (Candidate(SPOT, name, SPOT_NODES, SPOT_FIRST[name]) for name in (ALL_REDUCE, rival))
    return at_once([seconds([cell], TARGETS[SPOT], jitter=0.1) for cell in cells], truediv)


def _texts(ratios: Mapping[str, Measure], pipelines: Pipelines) -> str:
    """Return the ratio of each contender with its name; empty where runs are missing."""
    try:
        known = {name: interval_of(first_replicates(measure, pipelines)) for name, measure in ratios.items()}
    except Missing:
        return ""
    return "; ".join(f"{name} {shown(ratio)}" for name, ratio in known.items())


NEEDS = tuple(
    need_of(measure)
    for measure in (
        *(_lost_by_jitter(task, name) for task in IMAGES for name in LOCAL),
        *(_spot_race(name) for name in SPOT_RIVALS),
    )
)
