"""Pages of papers: how a measured value is written."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from dsgd.report.interval import paired_ratio
from studies.reproduction.pages import shown

INF = math.inf
seconds = st.one_of(st.just(INF), st.floats(0.01, 99.0))


def test_a_ratio_that_is_known_to_exceed_a_number_says_so():
    """On the third seed only 40 s are known: the median exceeds 1, and no end of the interval is never."""
    ratio = paired_ratio([12, 15, INF], [10, 10, 39], ends=[12, 15, 40], reference_ends=[10, 10, 39])
    assert shown(ratio) == "> 1.2 [1.026, > 1.5]"
    assert shown(paired_ratio([INF] * 2, [10] * 2, ends=[INF] * 2, reference_ends=[INF] * 2)) == "never"


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=7))
def test_a_median_between_finite_numbers_is_not_never(pairs: list[tuple[float, float]]):
    scores, others = (list(side) for side in zip(*pairs, strict=True))
    text = shown(paired_ratio(scores, others, ends=[100.0] * len(pairs), reference_ends=[100.0] * len(pairs)))
    assert "never" not in text
