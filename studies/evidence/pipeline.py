"""Tune and measure one contender, again and again with other seeds: replicated pipelines.

A replicate tunes the rate at each number of steps on one seed, by samples held out of training, and measures the test
loss at that rate on another. The numbers of steps double, from `first` until the measured losses lie on both sides of
the target. T* is where the loss equals the target, by interpolation of log loss over log steps: over a factor of two
the loss is close to a power law. All contenders have the same seeds in the same replicate.

The text is a plain program over the losses of trials. Where one is missing it raises `Missing`, with the trials to be
made: so it says what is run next, and, once all are there, what came out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from studies.evidence.paired_t import REPLICATES
from studies.evidence.trial import MEASURE, TUNE, Clock, Outcomes, Trial, TrialOutcome, read_archive, write_archive

FEWEST, MOST = 10, 163_840  # steps of each worker; where they do not reach the target, T* is unknown
WIDEST = 16  # levels of rates above and below the first one that are tried

LossCurve = Mapping[int, float]  # a loss for each number of steps


class Missing(Exception):
    """Runs have not been made."""

    def __init__(self, wanted: Sequence[Trial | Clock]) -> None:
        super().__init__(f"{len(wanted)} runs are missing")
        self.wanted = tuple(wanted)


def all_of(measures: Iterable[Callable[[], Any]]) -> list[Any]:
    """Return what measurements come to. Raises Missing, with the runs that all of them miss."""
    values, missing = list[Any](), list[Trial | Clock]()
    for measure in measures:
        try:
            values.append(measure())
        except Missing as line:
            missing += line.wanted
    if missing:
        raise Missing(missing)
    return values


@dataclass(frozen=True)
class Candidate:
    """One contender on one task with one number of workers.

    first: first number of steps to try. level: level of the first rate to try. network: options that change the
    seconds of its steps and not what it learns, as `cluster.bandwidth=1e7` of methods whose workers step together."""

    task: str
    contender: str
    nodes: int
    first: int = 640
    level: int = 0
    network: str = ""

    def trial(self, stage: str, replicate: int, steps: int, level: int) -> Trial:
        """Return a trial of this cell."""
        return Trial(self.task, self.contender, self.nodes, stage, replicate, steps, level)


class Measurement(NamedTuple):
    """What a pipeline came to. parts: the same on each tenth of the test samples; none where it is not known."""

    value: float
    parts: tuple[float, ...] = ()

    def times(self, factor: float) -> Measurement:
        """Return it in another unit."""
        return Measurement(factor * self.value, tuple(factor * part for part in self.parts))


@dataclass(frozen=True)
class Pipelines:
    """The archive: what trials came to, and the seconds of steps. quick: one replicate is enough to be shown, though it
    decides nothing."""

    trials: dict[Trial, TrialOutcome]
    clocks: dict[Clock, float]
    quick: bool = False
    _known: dict[tuple[Candidate, int, float], tuple[Measurement, float]] = field(default_factory=dict)  # T*

    @staticmethod
    def read(results: Path, quick: bool = False) -> Pipelines:
        """Read the archive of a folder. Raises ValueError for a file that is none."""
        return Pipelines(*read_archive(results), quick)

    def write(self, results: Path) -> None:
        """Write the archive into a folder."""
        write_archive(results, self.trials, self.clocks)

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the numbers of replicates after which a study may end."""
        return (1, *REPLICATES) if self.quick else REPLICATES

    def steps(self, cell: Candidate, replicate: int, target: float) -> tuple[Measurement, float]:
        """Return T* by the measured losses, and by those of tuning. Raises Missing."""
        key = (cell, replicate, target)
        if key not in self._known:
            measured = steps_to(cell, replicate, target, self.trials)
            parts = steps_by_part(cell, replicate, target, self.trials)
            self._known[key] = Measurement(measured, parts), tuned_steps_to(cell, replicate, target, self.trials)
        return self._known[key]

    def step_s(self, clock: Clock) -> float:
        """Return the seconds of a step. Raises Missing."""
        if clock not in self.clocks:
            raise Missing([clock])
        return self.clocks[clock]


def steps_to(cell: Candidate, replicate: int, target: float, outcomes: Outcomes) -> float:
    """Return T*, the steps of each worker after which the measured loss is the target; infinite where MOST steps do not
    reach it, FEWEST where they do. Raises Missing."""
    curve = losses_around(cell, replicate, target, outcomes)
    return crossing(curve, target) if curve[min(curve)] > target else float(min(curve))


def steps_by_part(cell: Candidate, replicate: int, target: float, outcomes: Outcomes) -> tuple[float, ...]:
    """Return T* by the losses on each tenth of the test samples, to first order: the loss of a tenth at T* differs from
    the target by a factor, which the slope of the curve turns into steps. None where T* is at an end. Raises
    Missing."""
    rungs = _rungs(cell, replicate, target, outcomes)
    curve = {steps: loss for steps, (_, loss) in rungs.items()}
    pair = _pair_around(curve, target)
    if pair is None or math.isinf(curve[pair[0]]):
        return ()
    few, many = pair
    ends = [outcomes[cell.trial(MEASURE, replicate, steps, rungs[steps][0])].parts for steps in pair]
    if not all(ends):
        return ()
    share, power = _share(curve, few, many, target), math.log(many / few) / math.log(curve[few] / curve[many])
    losses = (first ** (1 - share) * last**share for first, last in zip(*ends, strict=True))
    return tuple(few * (many / few) ** share * (loss / target) ** power for loss in losses)


def tuned_steps_to(cell: Candidate, replicate: int, target: float, outcomes: Outcomes) -> float:
    """Return T* by the losses of tuning, which are of held-out samples: by it one variant of several is chosen. Where
    they do not lie on both sides of the target, by the power law of the two nearest. Raises Missing."""
    rungs = _rungs(cell, replicate, target, outcomes)
    trials = {steps: cell.trial(TUNE, replicate, steps, level) for steps, (level, _) in rungs.items()}
    curve = {steps: outcome_of(trial, outcomes).loss for steps, trial in trials.items()}
    steps = sorted(curve)
    few, many = next((pair for pair in pairwise(steps) if curve[pair[1]] <= target), (steps[-2], steps[-1]))
    if math.isinf(curve[few]):
        return float(many)
    slope = math.log(curve[few] / curve[many]) / math.log(many / few)
    return few * (curve[few] / target) ** (1 / slope) if 0 < slope < math.inf else math.inf


def losses_around(cell: Candidate, replicate: int, target: float, outcomes: Outcomes) -> LossCurve:
    """Return the measured loss at numbers of steps that double, from above the target to below it. Raises Missing."""
    return {steps: loss for steps, (_, loss) in _rungs(cell, replicate, target, outcomes).items()}


def deepest(cell: Candidate, replicate: int, target: float, outcomes: Outcomes) -> Trial:
    """Return the measured trial with the most steps of those around the target. Raises Missing."""
    rungs = _rungs(cell, replicate, target, outcomes)
    steps = max(rungs)
    return cell.trial(MEASURE, replicate, steps, rungs[steps][0])


def best_tuned(cell: Candidate, replicate: int, steps: int, outcomes: Outcomes) -> Trial:
    """Return the trial of tuning with the rate that is best after a number of steps. Raises Missing."""
    return cell.trial(TUNE, replicate, steps, tuned_level(cell, replicate, steps, cell.level, (2, 1), outcomes))


def outcome_of(trial: Trial, outcomes: Outcomes) -> TrialOutcome:
    """Return what a trial came to. Raises Missing if it has not been made."""
    if trial not in outcomes:
        raise Missing([trial])
    return outcomes[trial]


def _rungs(cell: Candidate, replicate: int, target: float, outcomes: Outcomes) -> dict[int, tuple[int, float]]:
    """Return the tuned level and the measured loss at each number of steps. Raises Missing."""

    def rung(steps: int, start: int, strides: Sequence[int]) -> tuple[int, float]:
        level = tuned_level(cell, replicate, steps, start, strides, outcomes)
        return level, outcome_of(cell.trial(MEASURE, replicate, steps, level), outcomes).loss

    rungs = {cell.first: rung(cell.first, cell.level, (2, 1))}
    while rungs[most := max(rungs)][1] > target and 2 * most <= MOST:
        rungs[2 * most] = rung(2 * most, rungs[most][0], (1,))
    while rungs[fewest := min(rungs)][1] <= target and fewest // 2 >= FEWEST:
        rungs[fewest // 2] = rung(fewest // 2, rungs[fewest][0], (1,))
    return dict(sorted(rungs.items()))


def tuned_level(
    cell: Candidate, replicate: int, steps: int, start: int, strides: Sequence[int], outcomes: Outcomes
) -> int:
    """Return the level of the rate with the lowest loss: its neighbours at every stride are worse. Raises Missing.

    start: the level to begin with. strides: 2 is a factor of 2, 1 one of sqrt 2."""
    best = start
    for stride in strides:
        while True:
            near = [best - stride, best, best + stride]
            trials = (cell.trial(TUNE, replicate, steps, level) for level in near)
            losses = [outcome.loss for outcome in all_of(partial(outcome_of, trial, outcomes) for trial in trials)]
            lowest = near[losses.index(min(losses))] if math.isfinite(min(losses)) else best - stride
            if lowest == best or abs(lowest - start) > WIDEST:
                break
            best = lowest
    return best


def crossing(curve: LossCurve, target: float) -> float:
    """Return where a curve first falls to a level, by linear interpolation of log loss over log steps; infinite if it
    does not. Raises ValueError for a curve that begins below the level: its crossing is unknown."""
    steps = sorted(curve)
    if curve[steps[0]] <= target:
        raise ValueError(f"a curve must begin above {target}, got {curve[steps[0]]} after {steps[0]} steps")
    pair = _pair_around(curve, target)
    if pair is None:
        return math.inf
    few, many = pair
    return float(many) if math.isinf(curve[few]) else few * (many / few) ** _share(curve, few, many, target)


def _pair_around(curve: LossCurve, target: float) -> tuple[int, int] | None:
    """Return the two numbers of steps between which a curve that begins above a level first falls to it."""
    return next(((few, many) for few, many in pairwise(sorted(curve)) if curve[few] > target >= curve[many]), None)


def _share(curve: LossCurve, few: int, many: int, target: float) -> float:
    """Return how far from few to many steps a level is, on the axis of log steps, as a power law goes."""
    return math.log(curve[few] / target) / math.log(curve[few] / curve[many])
