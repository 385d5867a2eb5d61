"""Losses of pipelines whose T* is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from studies.evidence.contrast import TENTHS
from studies.evidence.pipeline import Pipelines
from studies.evidence.tasks import TARGETS
from studies.evidence.trial import Clock, OnDemand, Trial, TrialOutcome

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


class Training(OnDemand[Trial, TrialOutcome]):
    """Makes the outcome of a trial when it is asked for. noise: of a trial's log loss; common: of a replicate's, which
    all contenders share."""

    def __init__(self, laws: Mapping[str, PowerLaw], seed: int = 0, noise: float = 0.0, common: float = 0.0) -> None:
        draw, luck = random.Random(seed), dict[tuple[str, int], float]()

        def outcome(trial: Trial) -> TrialOutcome:
            shared = luck.setdefault((trial.stage, trial.replicate), draw.gauss(0, common))
            loss = laws[trial.contender].loss(trial) * math.exp(shared + draw.gauss(0, noise))
            return TrialOutcome(loss, 0.0, (), "")

        super().__init__(outcome)


@dataclass(frozen=True)
class End:
    """What the trials of a contender come to. steps: to the target of its task. worse: factor of its loss."""

    steps: float = 1000.0
    worse: float = 1.0
    accuracy: float = 0.9
    apart: float = 1.0


def world(end_of: Callable[[Trial], End], step_s: Callable[[Clock], float] = lambda _: 1.0) -> Pipelines:
    """Return an archive in which every trial has been made: what its contender comes to, with a little noise."""

    def outcome(trial: Trial) -> TrialOutcome:
        end, draw = end_of(trial), random.Random(str(trial))
        loss = PowerLaw(end.steps, 0.3, 0.0).loss(trial) * TARGETS.get(trial.task, TARGET) / TARGET * end.worse
        accuracy = end.accuracy + draw.gauss(0, 0.0001)
        noise = math.exp(draw.gauss(0, 0.0003))
        return TrialOutcome(loss * noise, accuracy, (), "", (accuracy,) * TENTHS, end.apart)

    return Pipelines(OnDemand(outcome), OnDemand(step_s))
