"""Compare what two contenders came to, seed by seed."""

from __future__ import annotations

import math

import numpy as np

from dsgd.record.reader import Run, number
from dsgd.report.contest import Contender, goal_of, score
from dsgd.report.crossing import end_s, time_to_target_s
from dsgd.report.interval import CONFIDENCE, Estimate, estimate
from dsgd.report.ratio import paired_ratio

RULE = "stable"  # the crossing that papers are judged by, as when their thresholds were fixed


def scores(one: Contender) -> list[float]:
    """Return the seconds to the target on each seed, or without a target the loss at the end; infinite where it did
    not get there."""
    return [score(run, goal_of(run), RULE) for run in one.runs]


def ratio(one: Contender, reference: Contender) -> Estimate:
    """Return the scores of a contender over those of another."""
    return paired_ratio(scores(one), scores(reference), CONFIDENCE, _ends(one), _ends(reference))


def _ends(one: Contender) -> list[float]:
    """Return what the scores are known to exceed that are infinite."""
    return [end_s(run, RULE) for run in one.runs]


def sample_ratio(one: Contender, reference: Contender) -> Estimate:
    """Return the samples to the target of a contender over those of another."""
    samples, others = ([samples_to_target(run) for run in contender.runs] for contender in (one, reference))
    return paired_ratio(samples, others)


def accuracy_gain(one: Contender, reference: Contender) -> Estimate:
    """Return the test accuracy at the end of a contender minus that of another."""
    pairs = zip(one.runs, reference.runs, strict=True)
    return estimate([number(run.final("test_accuracy")) - number(other.final("test_accuracy")) for run, other in pairs])


def samples_to_target(run: Run, rule: str | None = RULE) -> float:
    """Return after how many samples the target was reached; infinity if it was not. rule: of the crossing; None: the
    run's own."""
    time_s = time_to_target_s(run, rule)
    if time_s is None:
        return math.inf
    times, samples = ([mark[field] for mark in run.metrics] for field in ("time_s", "samples"))
    return float(np.interp(time_s, times, samples))
