"""Verdicts on Kale et al. 2025, on runs that never ran."""

from __future__ import annotations

import math
from dataclasses import replace

from dsgd.record.reader import Run
from dsgd.report.contest import Contender
from studies.papers.kale2025 import (
    LIMITED,
    OVERLAPS,
    PERIODS,
    b9,
)
from studies.reproduction.logged import Logged
from studies.reproduction.verdict import Verdict
from tests.support import logged
from tests.support.contenders import contender, run_reaching
from tests.support.each_row import each_row

PASS, FAIL, EXPLAINED, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.EXPLAINED, Verdict.INCONCLUSIVE


def line(olr: float, growth: float) -> Run:
    """Return a run whose distance to the minimum grows so in each round, of four steps."""
    marks = [{"epoch": 4.0 * r, "test_loss": growth ** (2 * r)} for r in range(100)]
    return logged.run("diloco", {"algo.olr": olr}, marks)


def one(overlap: str, tau: int, factor: float, spread: float = 0.0) -> Contender:
    """Return DiLoCo with a loss of 0.3 times a factor; spread: over the seeds."""
    own = {"name": "diloco", "overlap": overlap, "tau": tau}
    losses = [0.3 * factor * (1 + spread * i) for i in (-2, -1, 0, 1, 2)]
    found = contender(f"diloco, {overlap} {tau}", losses, target=None)
    return replace(found, runs=[replace(run, config=run.config | {"algo": own}) for run in found.runs])


def evidence(
    eager: float | tuple[float, ...] = 1.0,
    delayed: float = 1.1,
    spread: float = 0.0,
    growth: tuple[float, float] = (0.99, 1.01),
    longer: float = 1.1,
) -> dict[str, Logged]:
    """Return runs with these losses over those without overlap, of eager for each H; spread: of that, over the seeds.

    growth: per round, below and above the limits. longer: the loss of eager with more samples."""
    of_eager = eager if isinstance(eager, tuple) else (eager,) * len(PERIODS)
    factors = {"none": (1.0,) * len(PERIODS), "eager": of_eager, "delayed": (delayed,) * len(PERIODS)}
    members, fixed = [], []
    for overlap in OVERLAPS:
        for tau, factor in zip(PERIODS, factors[overlap], strict=True):
            own = {"name": "diloco", "overlap": overlap, "tau": tau}
            members.append(one(overlap, tau, factor, spread if overlap != "none" else 0.0))
            for seed in (1, 0):  # in any order
                run = run_reaching("diloco", math.inf if overlap == "delayed" else 0.3, seed, target=None)
                fixed.append(replace(run, config=run.config | {"algo": own}))
    limits = {
        f"limit_{overlap}_{p}": logged.study(line(0.2, growth[1]), line(0.1, growth[0])) for overlap, p in LIMITED
    }
    later = logged.contest(one("none", PERIODS[-1], 1.0), one("eager", PERIODS[-1], longer))
    return {"tuned": logged.contest(*members), "longer": later, "untuned": logged.study(*fixed), **limits}


@each_row(
    ("eager", "delayed", "verdict"),
    [(1.0, 1.06, PASS), (1.019, 1.051, PASS), (1.021, 1.06, FAIL), (1.0, 1.049, FAIL), (0.9, 0.9, FAIL)],
)
def test_b9_asks_little_of_eager_and_much_of_delayed(eager: float, delayed: float, verdict: Verdict) -> None:
    assert b9(evidence(eager, delayed)).verdict is verdict


@each_row(
    ("eager", "delayed", "longer", "verdict"),
    [
        ((1.0, 1.0, 1.1), 1.2, 1.019, EXPLAINED),
        ((1.0, 1.0, 1.1), 1.2, 1.021, FAIL),
        ((1.0, 1.1, 1.1), 1.2, 1.0, FAIL),  # it explains that of the longest rounds alone
        ((1.0, 1.0, 1.1), 1.0, 1.0, FAIL),
    ],
)
def test_more_samples_explain_what_eager_costs_with_the_longest_rounds(
    eager: tuple[float, ...], delayed: float, longer: float, verdict: Verdict
) -> None:
    assert b9(evidence(eager, delayed, longer=longer)).verdict is verdict


def test_b9_is_open_where_the_seeds_do_not_decide() -> None:
    assert b9(evidence(eager=1.03, spread=0.02)).verdict is OPEN


@each_row("growth", [(1.001, 1.01), (0.99, 0.999)])
def test_b9_fails_where_a_limit_is_elsewhere(growth: tuple[float, float]) -> None:
    assert b9(evidence(growth=growth)).verdict is FAIL
