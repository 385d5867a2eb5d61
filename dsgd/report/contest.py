"""Compare tuned contenders by runs that are paired by their seed: a score for each, and its ratio to that of the first.

The score is the time to the target, of the crossing that stays; without a target the loss at the end. Less is better. A
seed that did not get there, or that diverged or collapsed, counts as infinite: later than all others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from dsgd.crossing import RULES
from dsgd.record.reader import Run, number
from dsgd.report.crossing import rule_of, time_to_target_s
from dsgd.report.interval import Estimate, estimate

FEWEST_SEEDS = 5  # of fewer the intervals have less than 90 % confidence


@dataclass(frozen=True)
class Contender:
    """An algorithm with its options on a number of nodes, tuned, and measured on several seeds.

    name: as tables and figures call it, `gossip, 16 nodes`. algo: decides the colour. runs: one for each seed, in the
    order of the seeds, which are the same for all contenders. chosen: tuned key, its value. works: lowest and highest
    value of the first tuned key with which it works. spent: runs of tuning."""

    name: str
    algo: str
    nodes: int
    runs: Sequence[Run]
    chosen: Mapping[str, Any]
    works: tuple[float, float] | None
    spent: int


@dataclass(frozen=True)
class Goal:
    """Say what is compared. of: `accuracy` or `loss`, whose level is the target; level: None without a target.

    crossing: the rule by which it is reached, of `dsgd.crossing.RULES`."""

    of: str
    level: float | None
    crossing: str = RULES[0]

    @property
    def text(self) -> str:
        """Return `a test accuracy of 0.9`, `a test loss of 0.3`; without a target `the loss at the end`."""
        name = f"a test {self.of}"
        return f"{name} of {self.level:g}" if self.level is not None else "the loss at the end"


@dataclass(frozen=True)
class Standing:
    """Hold what the seeds say of a contender. scores: of each seed, infinite where it did not get there.

    score: their median and interval. ratio: of its scores to those of the first, seed by seed."""

    contender: Contender
    scores: list[float]
    score: Estimate
    ratio: Estimate

    @property
    def name(self) -> str:
        """Return the contender's name."""
        return self.contender.name

    @property
    def missed(self) -> int:
        """Return on how many seeds it did not get there."""
        return sum(map(math.isinf, self.scores))

    @property
    def behind(self) -> bool:
        """Check that it is distinguishable from the first: that the interval of the ratio lies above 1."""
        return self.ratio.low > 1


@dataclass(frozen=True)
class Contest:
    """A comparison. standings: sorted by the median score; the first is what the others are compared to."""

    goal: Goal
    standings: list[Standing]

    @property
    def seeds(self) -> int:
        """Return the number of seeds."""
        return len(self.standings[0].scores)

    @property
    def runs(self) -> list[Run]:
        """Return the runs of all, in the order of the standings."""
        return [run for one in self.standings for run in one.contender.runs]


def contest(contenders: Sequence[Contender]) -> Contest:
    """Score and sort the contenders: smallest median first, then who missed least, then the best at the end.

    Raises ValueError, in one line, unless names differ, and all have the same seeds, target and clock."""
    _check(contenders)
    runs = [run for one in contenders for run in one.runs]
    goal = goal_of(runs[0])
    scores = {one.name: [score(run, goal) for run in one.runs] for one in contenders}
    ordered = sorted(contenders, key=lambda one: _order(one, scores[one.name]))
    first = scores[ordered[0].name]
    standings = [
        Standing(one, scores[one.name], estimate(scores[one.name]), paired_ratio(scores[one.name], first))
        for one in ordered
    ]
    return Contest(goal, standings)


def goal_of(run: Run) -> Goal:
    """Return what a run aims at."""
    return Goal("loss" if run.target_field == "test_loss" else "accuracy", run.target, rule_of(run))


def score(run: Run, goal: Goal, rule: str | None = None) -> float:
    """Return the seconds to the target, or without a target the loss of a run that completed; else infinity.

    rule: by which a crossing counts; None: the run's own."""
    if goal.level is not None:
        seconds = time_to_target_s(run, rule)
        return math.inf if seconds is None else seconds
    loss = final_loss(run)
    return math.inf if math.isnan(loss) or run.outcome != "completed" else loss


def final_loss(run: Run) -> float:
    """Return the test loss at the end; the training loss of a problem that has no test data; NaN without either."""
    test_loss = number(run.final("test_loss"))
    return number(run.final("train_loss")) if math.isnan(test_loss) else test_loss


def paired_ratio(scores: Sequence[float], reference: Sequence[float]) -> Estimate:
    """Return median and interval of the ratios of two contenders' scores, seed by seed. scores, reference: [seeds].

    A seed on which neither got there decides nothing: its ratio counts as 0 for the low end and as infinite for the
    high one, so that the interval holds whatever a longer budget would have shown. The median is NaN where it depends
    on such seeds."""
    pairs = list(zip(scores, reference, strict=True))
    least = estimate([_ratio(one, other, undecided=0.0) for one, other in pairs])
    most = estimate([_ratio(one, other, undecided=math.inf) for one, other in pairs])
    middle = least.median if least.median == most.median else math.nan
    return Estimate(middle, least.low, most.high, len(pairs))


def distinguishable(one: Standing, other: Standing) -> bool:
    """Check that the interval of the ratio of two contenders does not hold 1."""
    ratio = paired_ratio(one.scores, other.scores)
    return ratio.low > 1 or ratio.high < 1


def _ratio(one: float, other: float, undecided: float) -> float:
    if math.isinf(one) and math.isinf(other):
        return undecided
    if one == other:
        return 1.0
    if one > 0 and other > 0:
        return one / other
    return math.inf if one > other else 0.0  # a target reached at once, or a loss of 0: only who is first is known


def _order(one: Contender, scores: Sequence[float]) -> tuple[float, int, float]:
    """Return a sorting key; what never gets there is sorted by how far it came."""
    accuracies = [accuracy for run in one.runs if not math.isnan(accuracy := number(run.final("test_accuracy")))]
    return median(scores), sum(map(math.isinf, scores)), -median(accuracies) if accuracies else 0.0


def _check(contenders: Sequence[Contender]) -> None:
    if not contenders:
        raise ValueError("contenders must be at least one, got none")
    first = contenders[0]
    if repeated := {one.name for one in contenders if [two.name for two in contenders].count(one.name) > 1}:
        raise ValueError(f"contenders must have names that differ, got several times: {'; '.join(sorted(repeated))}")
    seeds = [run.setting("seed") for run in first.runs]
    goal = goal_of(first.runs[0]) if first.runs else None
    for one in contenders:
        if not one.runs:
            raise ValueError(f"contender {one.name} must have a run for each seed, got none")
        if (those := [run.setting("seed") for run in one.runs]) != seeds:
            raise ValueError(f"contender {one.name} must have the seeds {seeds} of {first.name}, got {those}")
        for run in one.runs:
            if goal_of(run) != goal:
                got = f"{goal_of(run).text}, crossing={goal_of(run).crossing}"
                raise ValueError(f"contender {one.name} must have the target of {first.name}, got {got}")
    if len(clocks := {run.clock for one in contenders for run in one.runs} - {None}) > 1:
        raise ValueError(f"contenders must have times of one clock, got {' and '.join(sorted(map(str, clocks)))}")
