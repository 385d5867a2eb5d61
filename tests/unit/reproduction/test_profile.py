"""The performance profile: who is within a factor of the best, in which share of the settings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.reproduction.profile import FEWEST, profiles

SECONDS = st.one_of(st.floats(0.1, 100), st.just(math.inf))


@given(st.lists(st.fixed_dictionaries(dict.fromkeys(["sync", "gossip", "easgd"], SECONDS)), min_size=FEWEST))
def test_shares_grow_with_the_factor_and_somebody_is_best_everywhere(settings: list[dict[str, float]]) -> None:
    found = profiles(settings)
    counted = sum(math.isfinite(min(seconds.values())) for seconds in settings)
    assert counted < FEWEST or sum(one.factors.count(1.0) for one in found) >= counted
    for one in found:
        shares = [one.share(factor) for factor in (1, 1.5, 2, 10, math.inf)]
        assert shares == sorted(shares)
        assert shares[-1] == 1
        assert one.share(1e9) == sum(map(math.isfinite, one.factors)) / len(one.factors)


def test_settings_of_other_algorithms_are_refused_and_those_that_say_nothing_left_out() -> None:
    assert profiles([{"sync": math.inf, "gossip": math.inf}, {"sync": 1.0, "gossip": 2.0}]) == []
    with pytest.raises(ValueError, match="settings must have the same algorithms, got others"):
        profiles([{"sync": 1.0, "gossip": 2.0}, {"sync": 1.0}])
