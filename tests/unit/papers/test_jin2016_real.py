"""Verdicts on Jin et al. 2016 at the real scale, on runs that never ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsgd.report.contest import Contender
from studies.papers.real import jin2016_real as claims
from studies.reproduction.logged import Elsewhere, Logged
from studies.reproduction.verdict import Verdict
from tests.support import logged
from tests.support.contenders import contender
from tests.support.each_row import each_row

PASS, FAIL = Verdict.PASS, Verdict.FAIL
SEEDS = 10


def timed(options: Mapping[str, object], nodes: int, seconds: float, samples: float = 1000.0) -> Contender:
    """Return a contender that reaches the target at about so many seconds, a little later on every seed."""
    algo = str(options["algo"])
    settings = {key.removeprefix("algo."): {"true": True, "false": False}.get(str(value), value)
                for key, value in options.items() if key != "algo"}  # fmt: skip
    name = ", ".join([algo, *(f"{key}={value}" for key, value in settings.items())])
    rival = contender(name, [seconds * (1 + 0.001 * seed) for seed in range(SEEDS)], nodes)
    runs = []
    for run in rival.runs:
        end_s = max(float(mark["time_s"]) for mark in run.metrics)
        marks = [mark | {"samples": samples * mark["time_s"] / seconds} for mark in run.metrics]
        config = run.config | {"algo": {"name": algo, **settings}}
        runs.append(
            replace(
                run, config=config, metrics=marks, summary={**(run.summary or {}), "samples": samples * end_s / seconds}
            )
        )
    return replace(rival, algo=algo, runs=runs)


def race(nodes: int, seconds: Mapping[str, float], samples: Mapping[int, float] | None = None) -> Logged:
    """Return a race in which an algorithm takes so many seconds, and so many samples by its tau, under every jitter."""
    options = [*claims.SYNC, *claims.EASGD, *claims.GOSSIP]

    def contenders() -> tuple[Contender, ...]:
        return tuple(
            timed(
                each, nodes, seconds[str(each["algo"])], (samples or {}).get(int(str(each.get("algo.tau", 1))), 1000.0)
            )
            for each in options
        )

    elsewhere = tuple(Elsewhere({"cluster.jitter": jitter}, contenders()) for jitter in claims.JITTERS)
    return replace(logged.contest(*contenders()), elsewhere=elsewhere)


def races(seconds: Mapping[int, Mapping[str, float]], **more: Any) -> dict[str, Logged]:
    """Return races on these numbers of nodes, and null tests in which nothing differs."""
    null = [timed(claims.SYNC[0], nodes, times["sync"]) for nodes, times in seconds.items()]
    raced = {claims.race_on(nodes): race(nodes, times, **more) for nodes, times in seconds.items()}
    return raced | {"null_few": logged.contest(*null), "null_many": logged.contest(*null)}


AHEAD, LEVEL, BEHIND = ({"sync": 10.0, "easgd": 20.0, "gossip": gossip} for gossip in (8.0, 10.0, 12.0))


@each_row(
    ("fours", "eights", "sixteens", "verdict"),
    [
        (AHEAD, AHEAD, AHEAD, PASS),
        (AHEAD, AHEAD, BEHIND, PASS),
        (AHEAD, LEVEL, BEHIND, FAIL),
        (BEHIND, LEVEL, LEVEL, FAIL),
    ],
)
def test_two_of_three_numbers_of_few_nodes_decide(
    fours: dict[str, float], eights: dict[str, float], sixteens: dict[str, float], verdict: Verdict
) -> None:
    assert claims.j1(races({4: fours, 8: eights, 16: sixteens})).verdict is verdict


@each_row(("sixteens", "sixty_fours", "verdict"), [(AHEAD, BEHIND, PASS), (BEHIND, BEHIND, FAIL), (AHEAD, AHEAD, FAIL)])
def test_a_crossover_is_ahead_on_sixteen_nodes_and_behind_on_sixty_four(
    sixteens: dict[str, float], sixty_fours: dict[str, float], verdict: Verdict
) -> None:
    assert claims.j3(races({16: sixteens, 64: sixty_fours})).verdict is verdict


@each_row(("seldom", "verdict"), [(1200.0, PASS), (1300.0, FAIL)])
def test_samples_of_a_longer_period_decide_its_cost(seldom: float, verdict: Verdict) -> None:
    assert claims.j4(races({8: LEVEL}, samples={1: 1000.0, 10: seldom})).verdict is verdict
