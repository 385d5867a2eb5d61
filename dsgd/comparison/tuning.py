"""Search the values of a contender's keys: a grid of factor 2, extended until the best value has neighbours on all
sides, and on request the values half-way to them.

A pure function of the outcomes so far, so a killed comparison continues as if it had not been killed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from dsgd.record.reader import Run, number
from dsgd.report.fields import time_to_target_s

FACTOR = 2
HALF_WAY = math.sqrt(FACTOR)
LEAST_VALUES = 2  # of a grid: one value is no choice
WORKS = 2.0  # a value works if it reaches the target within this multiple of the shortest time
LOSS_WORKS = 1.1  # or, without a target, ends within this multiple of the lowest loss

Values = tuple[float, ...]  # one of each tuned key


@dataclass(frozen=True)
class Axis:
    """One tuned key, from `low` to `high` in factors of 2, and beyond if the best value lies at an edge.

    Two integers make a grid of integers, which ends at an odd value."""

    key: str
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low > 0):
            raise ValueError(f"{self.key} must be [lowest, highest], finite and > 0, got [{self.low}, {self.high}]")
        if len(self.grid) < LEAST_VALUES:
            raise ValueError(f"{self.key} must have a highest value >= {FACTOR} times the lowest, got {self.high}")

    @property
    def grid(self) -> list[float]:
        """Return the values to begin with, ascending."""
        count = 1 + math.floor(math.log2(self.high / self.low) + 1e-9)
        return [self.low * FACTOR**i for i in range(max(count, 0))]

    @property
    def between(self) -> bool:
        """Return whether values half-way between grid values can be tried: not for integers."""
        return not isinstance(self.low, int)

    def is_on_grid(self, value: float) -> bool:
        """Return whether a value is on the grid or its extension, not half-way."""
        steps = math.log2(value / self.low)
        return abs(steps - round(steps)) < 0.25

    def neighbours(self, value: float) -> list[float]:
        """Return the neighbours of a value: half of it, if that is possible, and twice the value."""
        if self.between:
            return [value / FACTOR, value * FACTOR]
        return [*([value // FACTOR] if value % FACTOR == 0 else []), value * FACTOR]

    def half_way(self, value: float) -> list[float]:
        """Return the values half-way to the neighbours of a value; empty for integers."""
        return [value / HALF_WAY, value * HALF_WAY] if self.between else []


@dataclass(frozen=True)
class Outcome:
    """Score of one run of tuning, on the validation samples.

    time_s: seconds to the target, infinite if the run did not reach it or has none. loss: final loss, infinite if the
    run diverged or collapsed."""

    time_s: float
    loss: float


def median_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of the same values over seeds: the median time, infinite if a seed missed the target, and the
    mean loss. Otherwise values that miss the target on a few seeds would be preferred, for example the shortest
    budgets."""
    times, losses = [outcome.time_s for outcome in outcomes], [outcome.loss for outcome in outcomes]
    return Outcome(median(times) if max(times) < math.inf else math.inf, sum(losses) / len(losses))


def best(outcomes: Mapping[Values, Outcome]) -> Values:
    """Return the values with the shortest time to the target, then the lowest loss; of equal ones the smallest."""
    return min(outcomes, key=lambda values: (outcomes[values].time_s, outcomes[values].loss, values))


def middle(axes: Sequence[Axis]) -> Values:
    """Return the middle of the grid, the start of a search."""
    return tuple(axis.grid[len(axis.grid) // 2] for axis in axes)


def next_values(
    axes: Sequence[Axis], outcomes: Mapping[Values, Outcome], most: int, fine: bool = False
) -> list[Values]:
    """Return the values to try next; none when the search is over.

    First the middle, whose time is a limit for all others; then the other grid values; then the neighbours of the best
    values; with `fine` at last the values half-way to these. most: maximum of values in a search, the grid included."""
    if not axes or len(outcomes) >= most:
        return [] if axes or outcomes else [()]
    if not outcomes:
        return [middle(axes)]
    grid = list(itertools.product(*(axis.grid for axis in axes)))
    missing = [values for values in grid if values not in outcomes]
    coarse = on_grid(axes, outcomes)
    if not missing:
        missing = [values for values in neighbours(axes, best(coarse)) if values not in outcomes]
    if not missing and fine:
        missing = [values for values in neighbours(axes, best(coarse), half_way=True) if values not in outcomes]
    return missing[: most - len(outcomes)]


def expected_values(axes: Sequence[Axis], outcomes: Mapping[Values, Outcome], most: int, fine: bool = False) -> int:
    """Return an estimate of the number of values that a search will still try: the remaining grid, one value of each
    key beyond it, because the best value often lies at an edge, and the half-way values."""
    if not axes:
        return 0
    grid = math.prod(len(axis.grid) for axis in axes)
    begun = len(on_grid(axes, outcomes)) < len(outcomes)
    between = 0 if begun or not fine else 2 * sum(axis.between for axis in axes)
    left = len(next_values(axes, outcomes, most)) if len(outcomes) >= grid else grid + len(axes) - len(outcomes)
    if fine and not left:
        return len(next_values(axes, outcomes, most, fine))
    return min(left + between, max(most - len(outcomes), 0))


def on_grid(axes: Sequence[Axis], outcomes: Mapping[Values, Outcome]) -> dict[Values, Outcome]:
    """Return the outcomes of values of the grid and its extension, without half-way values."""
    return {
        values: outcome
        for values, outcome in outcomes.items()
        if all(axis.is_on_grid(value) for axis, value in zip(axes, values, strict=True))
    }


def neighbours(axes: Sequence[Axis], values: Values, half_way: bool = False) -> list[Values]:
    """Return the values that differ from these in one key: by one factor, or half of it, which integers have not."""
    return [
        (*values[:i], neighbour, *values[i + 1 :])
        for i, axis in enumerate(axes)
        for neighbour in (axis.half_way(values[i]) if half_way else axis.neighbours(values[i]))
    ]


def open_edges(axes: Sequence[Axis], outcomes: Mapping[Values, Outcome]) -> list[str]:
    """Return the keys whose best values lie at an edge without tried values beyond: the search ended too early."""
    chosen = best(on_grid(axes, outcomes))
    return [
        axis.key
        for i, axis in enumerate(axes)
        if any((*chosen[:i], value, *chosen[i + 1 :]) not in outcomes for value in axis.neighbours(chosen[i]))
    ]


def limit_s(outcomes: Mapping[Values, Outcome]) -> float:
    """Return the time after which a run of this search can end: it is not the best one any more, nor one that works."""
    return WORKS * min((outcome.time_s for outcome in outcomes.values()), default=math.inf)


def working_range(outcomes: Mapping[Values, Outcome]) -> tuple[float, float] | None:
    """Return the lowest and the highest working value of the first key, with the best values of the other keys, or
    None."""
    chosen = best(outcomes)
    least = outcomes[chosen]
    along = {values[0]: outcomes[values] for values in outcomes if values[1:] == chosen[1:]}
    if math.isfinite(least.time_s):
        working = [value for value, outcome in along.items() if outcome.time_s <= WORKS * least.time_s]
    else:
        working = [value for value, outcome in along.items() if outcome.loss <= LOSS_WORKS * least.loss < math.inf]
    return (min(working), max(working)) if working else None


LOST = Outcome(math.inf, math.inf)


def outcome(run: Run) -> Outcome:
    """Return the outcome of a tuning run; a run that diverged or collapsed has lost."""
    if run.outcome != "completed":
        return LOST
    time_s, loss = time_to_target_s(run), number(run.final("test_loss"))
    return Outcome(math.inf if time_s is None else time_s, math.inf if math.isnan(loss) else loss)
