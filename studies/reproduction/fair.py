"""Compare two contenders as the protocol of docs/explanation/papers.md says.

Intervals of one claim hold together with 95 %, and are widened by what the seeds do not show: the test set, and the
null test, one algorithm that was tuned and measured under two names with other seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from dsgd.record.reader import Run, number
from dsgd.report.contest import Contender, final_loss
from dsgd.report.fields import crossings, rule_of
from dsgd.report.interval import CONFIDENCE, Estimate, estimate
from dsgd.report.ratio import paired_ratio
from studies.reproduction import paired
from studies.reproduction.paired import end_accuracy
from studies.reproduction.protocol import (
    confidence_of_each,
    fold_error,
    gain_error,
    null_difference,
    null_factor,
    ratio_error,
    widened,
    widened_ratio,
)

TEST_SAMPLES = {"fashion_mnist": 10_000, "text": 13_700}  # of data sets that do not say it in their options
SOURCES = 2  # of error: seeds and test set
EASIER = 1.05  # times the target loss: from there the slope of a curve at its target is measured


@dataclass(frozen=True)
class Null:
    """One algorithm under two names. first, second: its contenders, with seeds of their own."""

    first: Contender
    second: Contender


def null_time(null: Null) -> Estimate:
    """Return the seconds to the target of the first name over those of the second."""
    return paired.ratio(null.first, null.second, rule=None)


def null_samples(null: Null) -> Estimate:
    """Return the samples to the target of the first name over those of the second."""
    return paired.sample_ratio(null.first, null.second, rule=None)


def null_loss(null: Null) -> Estimate:
    """Return the test loss at the end of the first name over that of the second."""
    return _losses(null.first, null.second)


def null_gain(null: Null) -> Estimate:
    """Return the test accuracy at the end of the first name minus that of the second."""
    return paired.accuracy_gain(null.first, null.second)


def time_ratio(
    candidate: Contender,
    reference: Contender,
    checks: int,
    null: Null,
    tested: tuple[Contender, Contender] | None = None,
) -> Estimate:
    """Return the seconds to the target loss of a contender over those of another. checks: of the claim. tested: both
    under the conditions whose runs tell the error of the test set; None: as they are."""
    confidence = confidence_of_each(checks, SOURCES)
    value = paired.ratio(candidate, reference, confidence=confidence, rule=None)
    value = widened_ratio(value, null_factor(null_time(null)))
    return widened_ratio(value, _target_error(candidate, reference, confidence, tested))


def sample_ratio(candidate: Contender, reference: Contender, checks: int, null: Null) -> Estimate:
    """Return the samples to the target loss of a contender over those of another. checks: of the claim."""
    confidence = confidence_of_each(checks, SOURCES)
    value = paired.sample_ratio(candidate, reference, confidence=confidence, rule=None)
    value = widened_ratio(value, null_factor(null_samples(null)))
    return widened_ratio(value, _target_error(candidate, reference, confidence))


def loss_ratio(candidate: Contender, reference: Contender, checks: int, null: Null) -> Estimate:
    """Return the test loss at the end of a contender over that of another. checks: of the claim."""
    confidence = confidence_of_each(checks, SOURCES)
    value = widened_ratio(_losses(candidate, reference, confidence), null_factor(null_loss(null)))
    return widened_ratio(value, _loss_error(candidate, reference, confidence))


def loss_growth(
    pair: tuple[Contender, Contender], reference: tuple[Contender, Contender], checks: int, null: Null
) -> Estimate:
    """Return the ratio of the test losses at the end of a pair, first over second, over that of another pair.

    Each of the two ratios has the error of its own test losses, and the spread of the null test."""
    confidence = confidence_of_each(checks, SOURCES + 1)
    value = paired_ratio(_growths(pair), _growths(reference), confidence)
    spread = null_factor(null_loss(null)) ** 2
    return widened_ratio(value, spread * _loss_error(*pair, confidence) * _loss_error(*reference, confidence))


def accuracy_gain(candidate: Contender, reference: Contender, checks: int, null: Null | None = None) -> Estimate:
    """Return the test accuracy at the end of a contender minus that of another. checks: of the claim. null: None where
    nothing is tuned."""
    confidence = confidence_of_each(checks, SOURCES)
    spread = 0.0 if null is None else null_difference(null_gain(null))
    error = _gain_error(candidate, reference, confidence)
    return widened(paired.accuracy_gain(candidate, reference, confidence=confidence), spread + error)


def drop_difference(
    candidate: tuple[Contender, Contender],
    reference: tuple[Contender, Contender],
    share: float,
    checks: int,
    nulls: Sequence[Null],
) -> Estimate:
    """Return the test accuracy that a pair loses, first minus second, minus a share of what another pair loses.

    checks: of the claim. nulls: of both conditions, of which the wider one counts."""
    confidence = confidence_of_each(checks, SOURCES + 1)
    drops, others = ([end_accuracy(a) - end_accuracy(b) for a, b in _paired(pair)] for pair in (candidate, reference))
    value = estimate([drop - share * other for drop, other in zip(drops, others, strict=True)], confidence)
    spread = max(null_difference(null_gain(null)) for null in nulls)
    error = _gain_error(*candidate, confidence) + share * _gain_error(*reference, confidence)
    return widened(value, (1 + share) * spread + error)


def test_size(run: Run) -> int:
    """Return the number of test samples of a run."""
    size = run.setting("data.test_size")
    return size if isinstance(size, int) else TEST_SAMPLES[str(run.chosen("data"))]


def _loss_error(candidate: Contender, reference: Contender, confidence: float) -> float:
    """Return the factor that the test set adds to a ratio of losses, each relative to its mean."""
    folds, others = (_folds(side, "test_fold_losses") for side in (candidate, reference))
    if folds is not None and others is not None:
        relative = [values / values.mean(axis=1, keepdims=True) for values in (folds, others)]
        return math.exp(fold_error(relative[0] - relative[1], confidence))
    pair = (candidate.runs[0], reference.runs[0])
    deviations = [number(run.metrics[-1].get("test_loss_deviation")) for run in pair]
    return ratio_error([final_loss(run) for run in pair], deviations, test_size(candidate.runs[0]), confidence)


def _target_error(
    candidate: Contender,
    reference: Contender,
    confidence: float,
    tested: tuple[Contender, Contender] | None = None,
) -> float:
    """Return the factor that the test set adds to a ratio of times to a target loss: what it adds to the loss, to the
    power of the steeper curve's slope, in the median over seeds."""
    if candidate.runs[0].target_field != "test_loss":
        return 1.0  # of another target it is unknown; no study has one
    slopes = ([slope for run in side.runs if (slope := _slope(run)) is not None] for side in (candidate, reference))
    steepest = max((median(each) for each in slopes if each), default=0.0)
    return _loss_error(*(tested or (candidate, reference)), confidence) ** steepest


def _slope(run: Run) -> float | None:
    """Return by how much the time to the target grows as the target falls, both as logarithms; None where it was not
    reached."""
    target = run.target
    assert target is not None  # of every run with a time to it
    early, late = (crossings(run, level).by(rule_of(run)) for level in (target * EASIER, target))
    if early is None or late is None or early.time_s == 0:
        return None
    return math.log(late.time_s / early.time_s) / math.log(EASIER)


def _gain_error(candidate: Contender, reference: Contender, confidence: float) -> float:
    """Return what the test set adds to a difference of accuracies, at each end of its interval."""
    folds, others = (_folds(side, "test_fold_accuracies") for side in (candidate, reference))
    if folds is not None and others is not None:
        return fold_error(folds - others, confidence)
    reached, other = (estimate([end_accuracy(run) for run in side.runs]).median for side in (candidate, reference))
    return gain_error(reached, other, test_size(candidate.runs[0]), confidence)


def _folds(side: Contender, field: str) -> np.ndarray | None:
    """Return a field that has a number for each part of the test set, [seeds, parts]; None if a run does not have it,
    as those of earlier versions."""
    rows = [run.final(field) for run in side.runs]
    return None if any(row is None for row in rows) else np.array(rows)


def _losses(candidate: Contender, reference: Contender, confidence: float = CONFIDENCE) -> Estimate:
    values, others = ([_loss(run) for run in pair.runs] for pair in (candidate, reference))
    return paired_ratio(values, others, confidence)


def _paired(pair: tuple[Contender, Contender]) -> Iterator[tuple[Run, Run]]:
    """Yield the runs of a pair that have the same seed."""
    return zip(pair[0].runs, pair[1].runs, strict=True)


def _growths(pair: tuple[Contender, Contender]) -> list[float]:
    """Return the ratio of the losses of a pair on each seed; infinite where the first diverged."""
    losses = ([_loss(run) for run in side.runs] for side in pair)
    return [first if math.isinf(first) else first / second for first, second in zip(*losses, strict=True)]


def _loss(run: Run) -> float:
    """Return the test loss at the end; infinite for a run that diverged, as its time to a target is."""
    return math.inf if run.outcome == "diverged" else final_loss(run)
