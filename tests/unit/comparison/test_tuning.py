"""The search for a contender's values, on outcomes that are known beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.comparison.tuning import (
    Axis,
    Outcome,
    Values,
    best,
    limit_s,
    median_outcome,
    next_values,
    open_edges,
    working_range,
)
from tests.support.each_row import each_row

RATE = Axis("optimizer.lr", 0.05, 0.8)
PERIOD = Axis("algo.tau", 4, 16)


def searched(
    axes: Sequence[Axis], truth: Callable[[Values], Outcome], most: int = 16, fine: bool = False
) -> tuple[dict[Values, Outcome], list[list[Values]]]:
    """Search to the end. Returns what was found, and the rounds."""
    found: dict[Values, Outcome] = {}
    rounds = []
    while values := next_values(axes, found, most, fine):
        assert not found.keys() & set(values)
        rounds.append(values)
        found |= {point: truth(point) for point in values}
    return found, rounds


def valley(lowest: float) -> Callable[[Values], Outcome]:
    """No target; the loss grows with the distance from a rate, in factors."""
    return lambda values: Outcome(math.inf, 1 + abs(math.log2(values[0] / lowest)))


def test_the_grid_has_factor_2_and_both_ends() -> None:
    assert RATE.grid == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8])
    assert PERIOD.grid == [4, 8, 16]
    assert all(isinstance(value, int) for value in PERIOD.grid)
    assert Axis("algo.tau", 3, 13).grid == [3, 6, 12]


@each_row("ends", [(0.1, 0.1), (0.1, 0.15), (0.2, 0.1), (0, 1), (-1, 1), (0.1, math.inf), (math.nan, 1)])
def test_a_grid_without_a_choice_is_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"optimizer\.lr must"):
        Axis("optimizer.lr", *ends)


def test_the_middle_comes_first_then_the_rest_of_the_grid() -> None:
    found, rounds = searched([RATE], valley(0.2))
    assert [len(values) for values in rounds] == [1, 4]
    assert best(found) == (RATE.grid[2],)


@each_row(("lowest", "tried"), [(3.2, 8), (0.0125, 8), (0.8, 6), (0.05, 6)])
def test_the_grid_is_extended_until_both_sides_of_the_best_are_known(lowest: float, tried: int) -> None:
    found, _ = searched([RATE], valley(lowest))
    assert best(found)[0] == pytest.approx(lowest)
    assert len(found) == tried
    assert open_edges([RATE], found) == []


def test_a_search_ends_with_the_cap_and_names_the_open_edge() -> None:
    found, _ = searched([RATE], valley(1e9), most=7)
    assert len(found) == 7
    assert open_edges([RATE], found) == ["optimizer.lr"]


@given(st.floats(-6, 6), st.integers(1, 12))
def test_no_more_values_are_tried_than_allowed_and_the_best_of_them_is_chosen(exponent: float, most: int) -> None:
    truth = valley(2.0**exponent)
    found, _ = searched([RATE], truth, most)
    assert len(found) <= most
    assert found[best(found)].loss == min(outcome.loss for outcome in found.values())


def test_two_keys_are_searched_as_a_grid_and_each_is_extended() -> None:
    def truth(values: Values) -> Outcome:
        rate, period = values
        return Outcome(math.inf, 1 + abs(math.log2(rate / 1.6)) + abs(math.log2(period / 2)))

    found, rounds = searched([RATE, PERIOD], truth, most=40)
    assert len(rounds[0]) + len(rounds[1]) == 15
    assert best(found) == (pytest.approx(1.6), 2)
    assert open_edges([RATE, PERIOD], found) == []


@each_row(("lowest", "chosen"), [(0.2, 0.2), (0.26, 0.2 * 2**0.5), (0.16, 0.2 / 2**0.5)])
def test_at_last_values_half_way_to_the_neighbours_of_the_best_are_tried(lowest: float, chosen: float) -> None:
    found, rounds = searched([RATE], valley(lowest), fine=True)
    assert best(found)[0] == pytest.approx(chosen)
    assert [len(values) for values in rounds] == [1, 4, 2]
    assert sorted(value for (value,) in map(tuple, rounds[-1])) == pytest.approx([0.2 / 2**0.5, 0.2 * 2**0.5])
    assert open_edges([RATE], found) == []


def test_no_integer_lies_half_way() -> None:
    found, rounds = searched([PERIOD], lambda values: Outcome(math.inf, abs(values[0] - 8)), fine=True)
    assert sorted(value for (value,) in found) == [4, 8, 16]
    assert [len(values) for values in rounds] == [1, 2]


def test_integers_are_halved_while_they_stay_integers() -> None:
    found, _ = searched([PERIOD], lambda values: Outcome(math.inf, values[0]))
    assert sorted(value for (value,) in found) == [1, 2, 4, 8, 16]
    assert open_edges([PERIOD], found) == []


def test_time_to_target_counts_before_loss_and_a_smaller_rate_among_equals() -> None:
    assert best({(0.1,): Outcome(5.0, 0.1), (0.2,): Outcome(4.0, 0.9)}) == (0.2,)
    assert best({(0.1,): Outcome(math.inf, 0.2), (0.2,): Outcome(math.inf, 0.1)}) == (0.2,)
    assert best({(0.4,): Outcome(4.0, 0.1), (0.1,): Outcome(4.0, 0.1), (0.2,): Outcome(4.0, 0.1)}) == (0.1,)


def test_where_everything_diverges_the_search_goes_to_smaller_rates() -> None:
    def truth(values: Values) -> Outcome:
        return Outcome(math.inf, math.inf if values[0] > 0.01 else 1.0)

    found, _ = searched([RATE], truth)
    assert best(found)[0] < 0.01


def test_a_run_ends_when_it_can_neither_win_nor_work() -> None:
    found = {(0.1,): Outcome(5.0, 0.1), (0.2,): Outcome(4.0, 0.9), (0.4,): Outcome(math.inf, 1.0)}
    assert limit_s(found) == 8.0
    assert math.isinf(limit_s({}))


def test_what_works_comes_within_twice_the_shortest_time() -> None:
    times = {0.05: math.inf, 0.1: 7.9, 0.2: 4.0, 0.4: 5.0, 0.8: 8.1}
    assert working_range({(rate,): Outcome(time_s, 1.0) for rate, time_s in times.items()}) == (0.1, 0.4)
    assert working_range({(0.1,): Outcome(math.inf, math.inf)}) is None
    assert working_range({(0.1,): Outcome(math.inf, 1.0), (0.2,): Outcome(math.inf, 1.2)}) == (0.1, 0.1)


def test_one_seed_of_several_that_diverges_loses_its_values() -> None:
    assert median_outcome([Outcome(3.0, 0.1), Outcome(math.inf, math.inf)]) == Outcome(math.inf, math.inf)
    median = median_outcome([Outcome(3.0, 0.1), Outcome(5.0, 0.3), Outcome(4.0, 0.2)])
    assert (median.time_s, median.loss) == (4.0, pytest.approx(0.2))


def test_a_budget_that_one_seed_of_three_does_not_reach_the_target_in_is_not_the_best() -> None:
    """By their median the shorter budget would be."""
    short, long = ([Outcome(time_s, 0.3) for time_s in times] for times in ((4.0, math.inf, 4.2), (7.0, 7.5, 8.0)))
    assert best({(2560,): median_outcome(short), (5120,): median_outcome(long)}) == (5120,)
