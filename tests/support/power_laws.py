"""Losses of pipelines whose T* is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from studies.evidence.contrast import Pipelines
from studies.evidence.tasks import TARGETS
from studies.evidence.trial import Clock, Trial, TrialOutcome

TARGET = 0.3


@dataclass(frozen=True)
class PowerLaw:
    """A loss that is the target after `steps`, falls as steps to the power -slope, and is lowest at a level of the rate
    that falls with the number of steps."""

    steps: float
    slope: float
    level: float
    sharpness: float = 0.01

    def loss(self, trial: Trial) -> float:
        lost = self.sharpness * (trial.level - (self.level - 0.4 * math.log2(trial.steps / 1000))) ** 2
        return TARGET * (trial.steps / self.steps) ** -self.slope * math.exp(lost)


class Training(dict[Trial, TrialOutcome]):
    """Makes the outcome of a trial when it is asked for. noise: of a trial's log loss; common: of a replicate's, which
    all contenders share."""

    def __init__(self, laws: Mapping[str, PowerLaw], seed: int = 0, noise: float = 0.0, common: float = 0.0) -> None:
        super().__init__()
        self.laws, self.noise, self.common = laws, noise, common
        self.random, self.luck = random.Random(seed), dict[tuple[str, int], float]()

    def __contains__(self, trial: object) -> bool:
        return True

    def __missing__(self, trial: Trial) -> TrialOutcome:
        luck = self.luck.setdefault((trial.stage, trial.replicate), self.random.gauss(0, self.common))
        loss = self.laws[trial.contender].loss(trial) * math.exp(luck + self.random.gauss(0, self.noise))
        self[trial] = TrialOutcome(loss, 0.0, (), "")
        return self[trial]


@dataclass(frozen=True)
class End:
    """What the trials of a contender come to. steps: to the target of its task. worse: factor of its loss."""

    steps: float = 1000.0
    worse: float = 1.0
    accuracy: float = 0.9
    apart: float = 1.0


class World(dict[Trial, TrialOutcome]):
    """Makes the outcome of every trial from what its contender comes to, with a little noise."""

    def __init__(self, end_of: Callable[[Trial], End]) -> None:
        super().__init__()
        self.end_of = end_of

    def __contains__(self, trial: object) -> bool:
        return True

    def __missing__(self, trial: Trial) -> TrialOutcome:
        end = self.end_of(trial)
        draw = random.Random(str(trial))
        loss = PowerLaw(end.steps, 0.3, 0.0).loss(trial) * TARGETS[trial.task] / TARGET * end.worse
        accuracy = end.accuracy + draw.gauss(0, 0.0001)
        outcome = TrialOutcome(loss * math.exp(draw.gauss(0, 0.0003)), accuracy, (), "", (accuracy,) * 10, end.apart)
        return self.setdefault(trial, outcome)


class Ticking(dict[Clock, float]):
    """Makes the seconds of every kind of step."""

    def __init__(self, step_s: Callable[[Clock], float]) -> None:
        super().__init__()
        self.step_of = step_s

    def __contains__(self, clock: object) -> bool:
        return True

    def __missing__(self, clock: Clock) -> float:
        return self.setdefault(clock, self.step_of(clock))


def world(end_of: Callable[[Trial], End], step_s: Callable[[Clock], float] = lambda _: 1.0) -> Pipelines:
    """Return an archive in which every trial has been made."""
    return Pipelines(World(end_of), Ticking(step_s))
