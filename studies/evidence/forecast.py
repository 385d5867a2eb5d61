"""Forecast how long the pipelines that are missing compute, before any of them begins.

A pipeline is a program over the losses of trials, so it says what it would run: here over losses that follow a power
law where none was measured. A trial costs its samples times what a sample costs on one core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from studies.evidence.contrast import TENTHS, Need
from studies.evidence.pipeline import Missing, Pipelines
from studies.evidence.tasks import BATCHES, TARGETS
from studies.evidence.trial import OnDemand, Trial, TrialOutcome

SAMPLE_S = {"shapes": 11e-6, "fashion": 17e-6, "resnet8": 60e-6, "text": 200e-6}  # on one core
GUESSED_STEPS = {"shapes": 4000.0, "fashion": 1200.0, "resnet8": 2000.0}  # to the target, where there is one
SLOPE, SHARPNESS = 0.3, 0.01  # of the log loss over log steps, and over the level of the rate


@dataclass(frozen=True)
class Cost:
    """Count runs, and the seconds of one core that they take."""

    runs: int = 0
    core_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.runs} runs, {self.core_s / 3600:.2g} core-hours"


def forecast(needs: Sequence[Need], pipelines: Pipelines) -> Cost:
    """Return what the first replicates of these needs cost, less what is in the archive; not what later ones would."""
    guessed = list[Trial]()

    def guess(trial: Trial) -> TrialOutcome:
        guessed.append(trial)
        lost = 1 + SHARPNESS * trial.level**2
        target, steps = TARGETS.get(trial.task, 1.0), GUESSED_STEPS.get(trial.task, 1.0)
        loss = target * (steps / trial.steps) ** SLOPE * lost
        return TrialOutcome(loss, 0.5, (), "", (0.5,) * TENTHS, 1.0)

    trials = OnDemand(guess, pipelines.trials)
    archive = Pipelines(trials, OnDemand(lambda _: 1.0, pipelines.clocks), pipelines.quick)
    for need in needs:
        while True:
            try:
                need(archive, archive.counts[0])
                break
            except Missing as line:  # of trials that noted too little: they are made again
                for trial in line.wanted:
                    if isinstance(trial, Trial):
                        trials.pop(trial)
    return Cost(len(guessed), sum(map(_core_s, guessed)))


def _core_s(trial: Trial) -> float:
    sizes = [option.removeprefix("batch_size=") for option in trial.contender.split() if "batch_size=" in option]
    batch = int(sizes[0]) if sizes else BATCHES[trial.task]
    return trial.nodes * trial.steps * batch * SAMPLE_S[trial.task]
