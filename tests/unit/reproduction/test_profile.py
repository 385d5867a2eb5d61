"""The performance profile: who is within a factor of the best, in which share of the settings."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dsgd.report.contest import Contender
from studies.reproduction.profile import FEWEST, profiles, settings_of
from tests.support.contenders import contender
from tests.support.logged import contest

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


def test_a_setting_that_says_nothing_is_left_out() -> None:
    assert profiles([{"sync": math.inf, "gossip": math.inf}, {"sync": 1.0}] * FEWEST) == []


def one(algo: str, nodes: int, seconds: float, **options: Any) -> Contender:
    made = contender(f"{algo}, {nodes} nodes", [seconds] * 5, nodes=nodes)
    runs = [replace(run, config=run.config | {"algo": {"name": algo, **options}, "nodes": nodes}) for run in made.runs]
    return replace(made, name=f"{algo} {options}, {nodes} nodes", algo=algo, runs=runs)


def test_an_algorithm_counts_once_in_a_setting_by_its_best_contender() -> None:
    logged = contest(
        one("sync", 8, 2.0), one("gossip", 8, 3.0, tau=1), one("gossip", 8, 1.0, tau=10), one("sync", 16, 4.0)
    )
    assert settings_of(logged) == [{"sync": 2.0, "gossip": 1.0}, {"sync": 4.0}]


def test_contenders_that_need_other_budgets_or_no_gradients_again_share_a_setting() -> None:
    """All-reduce is timed again without gradients, and a slow method gets more steps."""

    def ran(made: Contender, **other: Any) -> Contender:
        return replace(made, runs=[replace(run, config=run.config | other) for run in made.runs])

    short = ran(one("sync", 8, 2.0), engine={"name": "sim", "gradients": "none"}, budget={"steps": 256})
    long = ran(one("easgd", 8, 3.0), engine={"name": "sim", "gradients": "auto"}, budget={"steps": 512})
    assert settings_of(contest(short, long)) == [{"sync": 2.0, "easgd": 3.0}]
