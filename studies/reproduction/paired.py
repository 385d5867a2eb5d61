"""Compare what two contenders came to, seed by seed."""

from __future__ import annotations

import math

import numpy as np

from dsgd.record.reader import Run, number
from dsgd.report.contest import Contender, goal_of, score
from dsgd.report.fields import end_s, time_to_target_s
from dsgd.report.interval import CONFIDENCE, Estimate, estimate
from dsgd.report.ratio import paired_ratio

RULE = "stable"  # the crossing that papers are judged by, as when their thresholds were fixed


def scores(candidate: Contender, rule: str | None = RULE) -> list[float]:
    """Return the seconds to the target on each seed, or without a target the loss at the end; infinite where it did
    not get there. rule: of the crossing; None: the run's own."""
    return [score(run, goal_of(run), rule) for run in candidate.runs]


def ratio(
    candidate: Contender, reference: Contender, *, confidence: float = CONFIDENCE, rule: str | None = RULE
) -> Estimate:
    """Return the scores of a contender over those of another."""
    ends, limits = ([end_s(run, rule) for run in contender.runs] for contender in (candidate, reference))
    return paired_ratio(scores(candidate, rule), scores(reference, rule), confidence, ends, limits)


def growth(pair: tuple[Contender, Contender], reference: tuple[Contender, Contender]) -> Estimate:
    """Return the ratio of the scores of a pair, first over second, over that of another pair."""
    ratios, others = ([a / b for a, b in zip(*map(scores, sides), strict=True)] for sides in (pair, reference))
    return paired_ratio(ratios, others)


def sample_ratio(
    candidate: Contender, reference: Contender, *, confidence: float = CONFIDENCE, rule: str | None = RULE
) -> Estimate:
    """Return the samples to the target of a contender over those of another."""
    samples, others = ([samples_to_target(run, rule) for run in contender.runs] for contender in (candidate, reference))
    return paired_ratio(samples, others, confidence)


def accuracy_gain(candidate: Contender, reference: Contender, *, confidence: float = CONFIDENCE) -> Estimate:
    """Return the test accuracy at the end of a contender minus that of another."""
    pairs = zip(candidate.runs, reference.runs, strict=True)
    return estimate([end_accuracy(run) - end_accuracy(other) for run, other in pairs], confidence)


def end_accuracy(run: Run) -> float:
    """Return the test accuracy at the end; 0 of a run that diverged, whatever it had before."""
    return 0.0 if run.outcome == "diverged" else number(run.final("test_accuracy"))


def samples_to_target(run: Run, rule: str | None = RULE) -> float:
    """Return after how many samples the target was reached; infinity if it was not. rule: of the crossing; None: the
    run's own."""
    time_s = time_to_target_s(run, rule)
    if time_s is None:
        return math.inf
    times, samples = ([mark[field] for mark in run.metrics] for field in ("time_s", "samples"))
    return float(np.interp(time_s, times, samples))
