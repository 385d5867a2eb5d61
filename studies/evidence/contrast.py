"""Compare contenders by what their pipelines measured: two numbers for each replicate, and their ratio or difference.

A measure returns what one pipeline came to in one replicate. A contrast holds the ratio or the difference of two
measures against a criterion of a claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dsgd.report.interval import Estimate
from studies.evidence.paired_t import REPLICATES, confidence_of, difference, ratio, replicates_wanted
from studies.evidence.pipeline import (
    Candidate,
    Measurement,
    Missing,
    Pipelines,
    all_of,
    best_tuned,
    outcome_of,
    tuned_level,
)
from studies.evidence.tasks import MOST_TESTED, STEPS, contender
from studies.evidence.trial import MEASURE, Clock, Trial
from studies.reproduction.criterion import Statement
from studies.reproduction.verdict import Check, Verdict

TENTHS = 10  # parts of the test samples

Measure = Callable[[Pipelines, int], Measurement]  # of a replicate; raises Missing
MeasurementPair = tuple[Measurement, Measurement]
Need = Callable[[Pipelines, int], None]  # raises Missing, with what it misses of so many replicates


def first_replicates(measure: Measure, pipelines: Pipelines) -> list[float]:
    """Return what a measure comes to in the replicates after which a study may end first. Raises Missing."""
    made = all_of(partial(measure, pipelines, replicate) for replicate in range(pipelines.counts[0]))
    return [each.value for each in made]


def need_of(measure: Measure) -> Need:
    """Return the need of a measure that no criterion judges: its first replicates."""

    def need(pipelines: Pipelines, _: int) -> None:
        first_replicates(measure, pipelines)

    return need


def steps(cell: Candidate, target: float) -> Measure:
    """Measure the steps of each worker to a target."""
    return lambda pipelines, replicate: pipelines.steps(cell, replicate, target)[0]


def samples(cell: Candidate, target: float) -> Measure:
    """Measure the samples of all workers to a target, in batches of one worker."""
    return lambda pipelines, replicate: steps(cell, target)(pipelines, replicate).times(cell.nodes)


def seconds(variants: Sequence[Candidate], target: float, overlap: bool = True, jitter: float = 0.0) -> Measure:
    """Measure the seconds to a target, with the variant that is the soonest one in tuning. overlap: of all-reduce."""

    def measure(pipelines: Pipelines, replicate: int) -> Measurement:
        def tuned_and_measured(cell: Candidate) -> tuple[float, Measurement]:
            clock = clock_of(cell, overlap, jitter, replicate)
            of_step, (measured, tuned) = all_of(
                [partial(pipelines.step_s, clock), partial(pipelines.steps, cell, replicate, target)]
            )
            return tuned * of_step, measured.times(of_step)

        _, measured_s = min(all_of(partial(tuned_and_measured, cell) for cell in variants), key=lambda pair: pair[0])
        return measured_s

    return measure


def clock_of(cell: Candidate, overlap: bool, jitter: float, replicate: int) -> Clock:
    """Return the clock of a candidate. overlap: of all-reduce; others have none."""
    hides = overlap and cell.contender.split()[0] == "sync"
    return Clock(f"{cell.contender} {cell.network}".strip(), cell.nodes, hides, jitter, replicate)


def loss(variants: Sequence[Candidate], after: int) -> Measure:
    """Measure the test loss after a number of steps, with the variant that is the best one in tuning."""
    return lambda pipelines, replicate: _loss(_best(variants, after, pipelines, replicate), pipelines)


def accuracy(variants: Sequence[Candidate], after: int) -> Measure:
    """Measure the test accuracy after a number of steps, with the variant whose loss is the lowest one in tuning."""
    return lambda pipelines, replicate: _accuracy(_best(variants, after, pipelines, replicate), pipelines)


def loss_at_end(task: str, nodes: int, *names: str, level: int = 0, part: int = 1) -> Measure:
    """Measure the test loss of several contenders, of which tuning chooses one, after the steps of a task.

    level: level of the first rate to try. part: divisor of the steps."""
    return loss([Candidate(task, name, nodes, level=level) for name in names], STEPS[task] // part)


def accuracy_at_end(task: str, nodes: int, name: str, part: int = 1) -> Measure:
    """Measure the test accuracy of a contender after the steps of a task, on as many test images as there are.

    part: divisor of the steps."""
    return accuracy([Candidate(task, contender(name, MOST_TESTED[task]), nodes)], STEPS[task] // part)


def accuracy_with_rate_of(tuned: Candidate, tuned_after: int, cell: Candidate, after: int) -> Measure:
    """Measure the test accuracy of one contender after a number of steps, with the rate that is tuned for another one
    after its own number of steps."""

    def measure(pipelines: Pipelines, replicate: int) -> Measurement:
        level = tuned_level(tuned, replicate, tuned_after, tuned.level, (2, 1), pipelines.trials)
        return _accuracy(cell.trial(MEASURE, replicate, after, level), pipelines)

    return measure


def apart(cell: Candidate, after: int) -> Measure:
    """Measure the median distance of two workers after a number of steps, at the rate of the cell's level."""

    def measure(pipelines: Pipelines, replicate: int) -> Measurement:
        trial = cell.trial(MEASURE, replicate, after, cell.level)
        distance = outcome_of(trial, pipelines.trials).apart
        if distance is None:
            raise Missing([trial])
        return Measurement(distance)

    return measure


def largest_rate(cell: Candidate, after: int, levels: Sequence[int], limit: float) -> Measure:
    """Measure the largest rate with which a contender learns: its test loss is within a limit after a number of steps.
    0 if it does with none of the levels."""

    def measure(pipelines: Pipelines, replicate: int) -> Measurement:
        trials = [cell.trial(MEASURE, replicate, after, level) for level in levels]
        made = all_of(partial(outcome_of, trial, pipelines.trials) for trial in trials)
        pairs = zip(trials, made, strict=True)
        return Measurement(max((trial.rate for trial, outcome in pairs if outcome.loss <= limit), default=0.0))

    return measure


def constant(value: float) -> Measure:
    """Return a number as a measure, to compare others with."""
    return lambda pipelines, replicate: Measurement(value, (value,) * TENTHS)


def _best(variants: Sequence[Candidate], after: int, pipelines: Pipelines, replicate: int) -> Trial:
    """Return the measured trial of the variant that tuning prefers."""
    tuned = all_of(partial(best_tuned, cell, replicate, after, pipelines.trials) for cell in variants)
    best = min(tuned, key=lambda trial: pipelines.trials[trial].loss)
    return replace(best, stage=MEASURE)


def _loss(trial: Trial, pipelines: Pipelines) -> Measurement:
    outcome = outcome_of(trial, pipelines.trials)
    return Measurement(outcome.loss, outcome.parts)


def _accuracy(trial: Trial, pipelines: Pipelines) -> Measurement:
    outcome = outcome_of(trial, pipelines.trials)
    if math.isinf(outcome.loss):
        return Measurement(-math.inf)
    if not outcome.accuracies:
        raise Missing([trial])  # made by a program that did not note them
    return Measurement(outcome.accuracy, outcome.accuracies)


def at_once(measures: Sequence[Measure], combine: Callable[..., float]) -> Measure:
    """Measure a number that is made of several, as `combine` makes it."""

    def measure(pipelines: Pipelines, replicate: int) -> Measurement:
        made = all_of(partial(each, pipelines, replicate) for each in measures)
        parts = tuple(combine(*values) for values in zip(*(each.parts for each in made), strict=False))
        return Measurement(combine(*(each.value for each in made)), parts)

    return measure


@dataclass(frozen=True)
class Contrast:
    """One measurement of a claim, to be held against a criterion of it.

    what: is measured. first, second: of whose numbers it is the ratio, or the difference."""

    criterion: str
    what: str
    first: Measure
    second: Measure
    estimator: Callable[..., Estimate] = ratio

    def need(self, stated: Statement, checks: int, pipelines: Pipelines, most: int = REPLICATES[-1]) -> None:
        """Raise Missing, with what the replicates miss that the measurement wants; nothing where all are there.

        checks: as in `check`. most: replicates that are made."""
        pairs, wanted = list[MeasurementPair](), min(REPLICATES[0], most)
        while len(pairs) < wanted:
            pairs += all_of(partial(self._pair, pipelines, replicate) for replicate in range(len(pairs), wanted))
            wanted = min(self._wanted(stated, pairs, checks), most)

    def pairs(self, pipelines: Pipelines) -> list[MeasurementPair]:
        """Return the numbers of as many replicates as a study may end with. Raises Missing if there are too few."""
        pairs = list[MeasurementPair]()
        for replicate in range(REPLICATES[-1]):
            try:
                pairs.append(self._pair(pipelines, replicate))
            except Missing:
                if replicate < pipelines.counts[0]:
                    raise
                break
        return pairs[: max(count for count in pipelines.counts if count <= len(pairs))]

    def value(self, pipelines: Pipelines) -> Estimate:
        """Return the ratio or the difference with its interval. Raises Missing."""
        return self._estimate(self.pairs(pipelines))

    def check(self, stated: Statement, pipelines: Pipelines, passing: int, failing: int) -> Check:
        """Hold the measurement against its criterion, by the replicates with which the study ends.

        passing: checks of which each could make the claim pass; failing: make it fail. A check that passes, or fails,
        must do so with an interval that is longer the more there are. Raises Missing."""
        pairs = self.pairs(pipelines)
        counts = [count for count in pipelines.counts if count <= len(pairs)]
        checks = max(passing, failing)
        enough = (count for count in counts if self._wanted(stated, pairs[:count], checks) == count)
        pairs = pairs[: next(enough, counts[-1])]
        check = stated.check(self.criterion, self.what, self._estimate(pairs))
        others = {Verdict.PASS: passing, Verdict.FAIL: failing}.get(check.verdict, 1)
        longer = self._estimate(pairs, confidence_of(len(pairs), others))
        return stated.check(self.criterion, self.what, longer)

    def _wanted(self, stated: Statement, pairs: Sequence[MeasurementPair], checks: int) -> int:
        bound, confidence = stated.criteria[self.criterion].bound, confidence_of(REPLICATES[0], checks)
        return replicates_wanted(len(pairs), partial(self._estimate, pairs), bound, confidence)

    def _pair(self, pipelines: Pipelines, replicate: int) -> MeasurementPair:
        first, second = all_of(partial(measure, pipelines, replicate) for measure in (self.first, self.second))
        return first, second

    def _estimate(self, pairs: Sequence[MeasurementPair], confidence: float | None = None) -> Estimate:
        """Return the estimate, whose interval holds for other replicates and for other test samples."""
        firsts, seconds = ([each.value for each in column] for column in zip(*pairs, strict=True))
        value = self.estimator(firsts, seconds, confidence)
        by_part = [self._of_parts(*pair) for pair in pairs]
        if not all(by_part) or math.isinf(value.high):
            return value
        means = [sum(column) / len(column) for column in zip(*by_part, strict=True)]
        return with_test_samples(value, means, self.estimator, confidence or confidence_of(len(pairs)))

    def _of_parts(self, first: Measurement, second: Measurement) -> list[float]:
        pairs = list(zip(first.parts, second.parts, strict=False))
        if self.estimator is difference:
            return [a - b for a, b in pairs]
        return [math.log(a / b) for a, b in pairs] if all(a > 0 and b > 0 for a, b in pairs) else []


def with_test_samples(
    value: Estimate, by_part: Sequence[float], estimator: Callable[..., Estimate], confidence: float
) -> Estimate:
    """Return an estimate whose interval also holds for other test samples: the squares of both errors are added.

    by_part: the logarithm of the ratio, or the difference, on each part of the test samples, in the mean over
    replicates."""
    part = difference(by_part, [0.0] * len(by_part), confidence)
    error = part.high - part.median
    if estimator is difference:
        half = math.hypot(value.high - value.median, error)
        return replace(value, low=value.median - half, high=value.median + half)
    half = math.exp(math.hypot(math.log(value.high / value.median), error))
    return replace(value, low=value.median / half, high=value.median * half)
