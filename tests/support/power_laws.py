"""Losses of pipelines whose T* is known."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from studies.evidence.trial import Trial, TrialOutcome

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
