from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsgd.traces.intervals import Intervals, clipped, common, gaps, length, merged, union, without

PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), max_size=12)


def times_of(pairs: list[list[int]]) -> Intervals:
    edges = np.array(pairs, float).reshape(-1, 2)
    return merged(edges[:, 0], edges[:, 1])


def units(times: Intervals) -> set[int]:
    """The units [k, k + 1] that lie in a set of whole times."""
    return {k for begin, end in times for k in range(int(begin), int(end))}


@given(PAIRS, PAIRS, st.integers(0, 15), st.integers(16, 30))
def test_sets_of_times_are_sets(some: list[list[int]], others: list[list[int]], begin: int, end: int) -> None:
    one, other = times_of(some), times_of(others)
    inside = set(range(begin, end))
    assert units(one) == {k for low, high in some for k in range(low, high)}
    assert units(union([one, other])) == units(one) | units(other)
    assert units(common(one, other)) == units(one) & units(other)
    assert units(without(one, other)) == units(one) - units(other)
    assert units(clipped(one, begin, end)) == units(one) & inside
    assert units(gaps(one, begin, end)) == inside - units(one)
    for times in (one, union([one, other]), common(one, other), without(one, other), gaps(one, begin, end)):
        assert length(times) == len(units(times))
        assert (np.diff(times.ravel()) >= 0).all()
