"""Verdicts on Jin et al. 2016, on runs that never ran."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dsgd.report.contest import Contender
from studies.papers.jin2016 import claims
from studies.reproduction.logged import Logged
from studies.reproduction.verdict import Verdict
from tests.support import logged
from tests.support.contenders import contender
from tests.support.each_row import each_row

PASS, FAIL, EXPLAINED, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.EXPLAINED, Verdict.INCONCLUSIVE
NEVER = [math.inf] * 5


def one(algo: str, nodes: int, seconds: Sequence[float], **options: Any) -> Contender:
    name = " ".join([algo, *(f"{key}={value}" for key, value in options.items())]) + f", {nodes} nodes"
    found = contender(name.replace(algo, f"{algo},", 1), seconds, nodes=nodes, samples=16_000)
    runs = [replace(run, config=run.config | {"algo": {"name": algo, **options}}) for run in found.runs]
    return replace(found, name=name, runs=runs)


def five(seconds: float, spread: float = 0.02) -> list[float]:
    return [seconds * (1 + spread * i) for i in (-2, -1, 0, 1, 2)]


def times(
    nodes: int, hidden: float, exposed: float, gossip: Sequence[float], easgd: Sequence[float]
) -> list[Contender]:
    """All contenders on so many nodes, by their seconds to the target."""
    return [
        one("sync", nodes, five(hidden), overlap=True),
        one("sync", nodes, five(exposed), overlap=False),
        one("gossip", nodes, gossip, tau=1),
        one("gossip", nodes, NEVER, tau=10),
        one("easgd", nodes, easgd, tau=10),
    ]


def few(hidden: Sequence[float], exposed: Sequence[float]) -> dict[str, Logged]:
    """On 4, 8 and 16 nodes, where gossip takes 10 s."""
    found = [
        entry
        for nodes, one_s, other_s in zip((4, 8, 16), hidden, exposed, strict=True)
        for entry in times(nodes, one_s, other_s, five(10), NEVER)
    ]
    return {"few_uneven": logged.contest(*found)}


@each_row(
    ("hidden", "exposed", "verdict"),
    [
        ([11.1, 11.1, 9.0], [12, 12, 12], PASS),  # two of three are enough
        ([11.1, 10.9, 9.0], [12, 12, 12], EXPLAINED),  # one is not; without overlap all are there
        ([10.9, 10.9, 9.0], [10, 10, 12], FAIL),  # nor does that explain it
    ],
)
def test_j1_asks_for_a_tenth_at_two_of_three(hidden: list[float], exposed: list[float], verdict: Verdict) -> None:
    assert claims.j1(few(hidden, exposed)).verdict is verdict


def many(sync: float, gossip: Sequence[float]) -> dict[str, Logged]:
    """On 4 to 100 nodes; all take the same up to 16, as long on 32, and then these seconds."""
    upper = [entry for nodes in (64, 100) for entry in times(nodes, sync, sync, gossip, NEVER)]
    last = times(32, 12, 12, five(10), NEVER)
    return few([12, 12, 12], [12, 12, 12]) | {"many_uneven": logged.contest(*last, *upper)}


@each_row(
    ("sync", "gossip", "verdict"),
    [
        (10, five(12), PASS),  # between 32 and 64
        (10, NEVER, PASS),
        (12, five(10), FAIL),  # there is none
    ],
)
def test_j3_finds_where_all_reduce_becomes_first(sync: float, gossip: Sequence[float], verdict: Verdict) -> None:
    assert claims.j3(many(sync, gossip)).verdict is verdict


def test_j3_fails_where_all_reduce_is_first_everywhere() -> None:
    found = few([9, 9, 9], [9, 9, 9])
    upper = [entry for nodes in (32, 64, 100) for entry in times(nodes, 9, 9, five(10), NEVER)]
    assert claims.j3(found | {"many_uneven": logged.contest(*upper)}).verdict is FAIL


def hundred(sync: Sequence[float], gossip: Sequence[float], loss: float) -> Logged:
    """On 100 nodes, by their seconds to the target. loss: at the end, of all-reduce; of the others it is 1."""
    found = [one("sync", 100, sync, overlap=True), one("gossip", 100, gossip, tau=1), one("easgd", 100, NEVER, tau=10)]
    for each in found:
        for run in each.runs:
            assert run.summary is not None
            run.summary["test_loss"] = loss if each.algo == "sync" else 1.0
    return logged.contest(*found)


@each_row(
    ("sync", "gossip", "loss", "verdict"),
    [
        (five(10), NEVER, 0.9, PASS),
        (five(10), five(10.5, 0.0), 0.9, PASS),
        (five(10), five(10.01, 0.0), 0.9, OPEN),  # on one seed later
        (five(10), five(8), 0.9, FAIL),  # later
        (five(10), NEVER, 1.0, FAIL),  # no better
        (NEVER, NEVER, 0.9, OPEN),
    ],
)
def test_j2_asks_for_a_lower_loss_in_no_more_time(
    sync: Sequence[float], gossip: Sequence[float], loss: float, verdict: Verdict
) -> None:
    found = hundred(sync, gossip, loss)
    assert claims.j2({"many_uneven": found, "hundred": found}).verdict is verdict
