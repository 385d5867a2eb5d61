"""Verdict on Koloskova et al. 2019, on runs that never ran."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dsgd.report.contest import Contender
from studies.papers.koloskova2019 import CODES, b10
from studies.reproduction.verdict import Verdict
from tests.support import logged
from tests.support.contenders import contender
from tests.support.each_row import each_row

PASS, FAIL = Verdict.PASS, Verdict.FAIL
DENSE = 1e9  # bytes of D-PSGD


def one(algo: str, losses: Sequence[float], times_fewer: float = 1.0, **options: Any) -> Contender:
    """Return a contender that ends at these losses, having started at 2 more; inf: diverged."""
    found = contender(algo, losses, target=None, bytes_sent_total=DENSE / times_fewer)
    runs = [replace(run, config=run.config | {"algo": {"name": algo, **options}}) for run in found.runs]
    return replace(found, runs=runs, chosen={"optimizer.lr": 0.1, "algo.gamma": 0.1})


def five(loss: float) -> list[float]:
    return [loss * (1 + 0.001 * i) for i in (-2, -1, 0, 1, 2)]


def judged(plain: Sequence[float], codes: Sequence[float], times_fewer: Sequence[float]) -> Verdict:
    """Judge losses at the end: of D-PSGD in its two orders, and of CHOCO-SGD with top 1 %, top 10 % and signs."""
    entries = [one("dpsgd", five(loss), gradient=order) for order, loss in zip(("before", "first"), plain, strict=True)]
    for options, loss, fewer in zip(CODES.values(), codes, times_fewer, strict=True):
        entries.append(one("choco", five(loss), fewer, **options))
    return b10({"codes": logged.contest(*entries)}).verdict


@each_row(
    ("plain", "codes", "times_fewer", "verdict"),
    [
        ((0.7, 0.6), (0.61, 0.9, 0.9), (50, 5, 32), PASS),  # one code is enough
        ((0.7, 0.6), (0.9, 0.9, 0.61), (50, 5, 32), PASS),
        ((0.7, 0.6), (0.63, 0.5, 0.9), (50, 5, 32), FAIL),  # the code that is good is too long
        ((0.6, 0.7), (0.63, 0.9, 0.9), (50, 5, 32), FAIL),  # D-PSGD counts with its better order
        ((0.7, 0.6), (0.61, 0.5, 0.5), (24, 5, 24), FAIL),
        ((0.7, 0.6), (2.1, 0.9, 0.61), (50, 5, 32), FAIL),  # top 1 % ends at more than half its loss at the start
        ((0.7, 0.6), (math.inf, 0.9, 0.61), (50, 5, 32), FAIL),
    ],
)
def test_b10_asks_one_short_code_for_the_loss_and_the_shortest_to_converge(
    plain: Sequence[float], codes: Sequence[float], times_fewer: Sequence[float], verdict: Verdict
) -> None:
    assert judged(plain, codes, times_fewer) is verdict
