"""Bisect a crossing on a logarithmic scale, seed by seed."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from dsgd.comparison.crossing_runs import Enclosure, enclose
from dsgd.comparison.options import CLOSE, Bracket
from tests.support.each_row import each_row


def searched(bracket: Bracket, crossing: float) -> tuple[Enclosure, int]:
    """Return what the search ends with where the leader changes at a value, and how many values it tried."""
    ahead: dict[float, bool | None] = {}
    while (enclosure := enclose(bracket, ahead)).next is not None:
        ahead[enclosure.next] = enclosure.next < crossing
    return enclosure, len(ahead)


@given(st.floats(1e6, 1e10), st.floats(1.01, 1e5), st.floats(0.001, 0.999))
def test_the_search_encloses_the_crossing_within_five_percent(low: float, factor: float, share: float) -> None:
    """It tries the ends and as many values as halvings of the logarithm take, one more for rounding."""
    bracket = Bracket("cluster.bandwidth", low, low * factor)
    crossing = low * factor**share
    enclosure, tried = searched(bracket, crossing)
    assert enclosure.low <= crossing <= enclosure.high <= enclosure.low * CLOSE
    assert tried <= 2 + bracket.halvings + 1


@given(st.integers(1, 50), st.integers(1, 500), st.floats(0.001, 0.999))
def test_between_two_integers_only_integers_are_tried(low: int, more: int, share: float) -> None:
    crossing = low + share * more
    enclosure, _ = searched(Bracket("nodes", low, low + more), crossing)
    assert isinstance(enclosure.low, int)
    assert isinstance(enclosure.high, int)
    assert (
        enclosure.high - enclosure.low == 1 or enclosure.high <= enclosure.low * CLOSE or crossing in (low, low + more)
    )


@each_row(
    ("at_low", "at_high", "bounds"),
    [
        (True, True, (100.0, math.inf)),  # not overtaken within the bracket
        (False, False, (0.0, 1.0)),  # overtaken before
        (False, True, (0.0, math.inf)),  # the other way round
        (None, None, (0.0, math.inf)),  # neither reaches the target
        (None, False, (0.0, 100.0)),
        (True, None, (1.0, math.inf)),
    ],
)
def test_ends_without_a_crossing_bound_it_from_outside(
    at_low: bool | None, at_high: bool | None, bounds: tuple[float, float]
) -> None:
    found = enclose(Bracket("cluster.bandwidth", 1.0, 100.0), {1.0: at_low, 100.0: at_high})
    assert (found.low, found.high, found.next) == (*bounds, None)


def test_where_neither_is_ahead_the_search_ends_with_what_it_knows() -> None:
    found = enclose(Bracket("cluster.bandwidth", 1.0, 100.0), {1.0: True, 100.0: False, 10.0: None})
    assert (found.low, found.high, found.next) == (1.0, 100.0, None)
