"""Claims of Zhang et al. 2015 on runs made by hand, and the closed forms that they use."""

from __future__ import annotations

import numpy as np
import pytest

from dsgd.record.reader import Run
from studies.papers import CLAIMS, read_studies
from studies.papers.zhang2015.claims import ABOVE, BELOW, DELAYED_ABOVE, DELAYED_BELOW, e2, e5
from studies.papers.zhang2015.stability import (
    admm_radius,
    delayed_rate_bound,
    delayed_rate_by_bisection,
    growth_per_step,
    moving_rate_bound,
    round_robin_radius,
)
from studies.reproduction.logged import Logged
from studies.reproduction.verdict import Verdict
from tests.support.each_row import each_row
from tests.support.logged import run, study


def line(growth: float, nodes: int = 4, **settings: float) -> Run:
    """Return a run whose distance to the minimum grows so in each step, as it swings."""
    marks = [
        {"epoch": float(step), "test_loss": (growth**step * np.cos(0.7 * step)) ** 2} for step in range(0, 400, 10)
    ]
    named = {key.replace("__", "."): value for key, value in settings.items()}
    return run("easgd", {"nodes": nodes, **named}, marks, staleness_max=nodes - 1)


@each_row("growth", [0.97, 0.999, 1.001, 1.05])
def test_growth_is_seen_through_swings(growth: float) -> None:
    assert growth_per_step(line(growth)) == pytest.approx(growth, abs=2e-3)
    assert (growth_per_step(line(growth)) > 1) == (growth > 1)


@each_row(
    ("below", "above", "verdict"), [(0.99, 1.01, Verdict.PASS), (1.01, 1.02, Verdict.FAIL), (0.98, 0.99, Verdict.FAIL)]
)
def test_e2_needs_runs_that_shrink_below_and_grow_above(below: float, above: float, verdict: Verdict) -> None:
    both = study(line(below, algo__alpha=0.5), line(above, algo__alpha=0.6))
    assert e2(dict.fromkeys(CLAIMS["E2"].studies, both)).verdict is verdict


def test_the_radius_is_that_of_rounds_played_by_hand() -> None:
    """Three workers and a centre, one after the other, many rounds: the norm grows as the radius says."""
    lr_h, alpha = 1.0, 1.05 * moving_rate_bound(1.0)
    x, c, norms = np.array([1.0, -0.3, 0.2]), 0.5, []
    for _ in range(400):
        for i in range(3):
            e = alpha * (x[i] - c)
            x[i], c = x[i] - e - lr_h * x[i], c + e
        norms.append(np.linalg.norm([*x, c]))
    assert (norms[-1] / norms[199]) ** (1 / 200) == pytest.approx(round_robin_radius(3, lr_h, alpha), rel=1e-3)


def test_the_rate_of_delayed_gradients_by_bisection_is_the_known_one() -> None:
    assert [delayed_rate_by_bisection(s) for s in (0, 1, 3, 15)] == pytest.approx([2, 1, 0.445042, 0.101298], rel=1e-5)
    assert delayed_rate_bound(7) == pytest.approx(0.209057, rel=1e-5)


@each_row(
    ("below", "above", "verdict"), [(0.99, 1.01, Verdict.PASS), (1.001, 1.01, Verdict.FAIL), (0.99, 0.99, Verdict.FAIL)]
)
def test_e5_needs_the_rate_below_to_be_stable_and_that_above_not(below: float, above: float, verdict: Verdict) -> None:
    def both(workers: int) -> Logged:
        return study(line(below, workers, optimizer__lr=0.1), line(above, workers, optimizer__lr=0.2))

    found = {f"delayed_{workers}": both(workers) for workers in (2, 3, 4, 8, 16)}
    assert found.keys() == {*CLAIMS["E5"].studies}
    assert e5(found).verdict is verdict


@each_row("name", [*CLAIMS["E2"].studies, *CLAIMS["E5"].studies])
def test_runs_are_just_below_and_just_above_the_bound(name: str) -> None:
    study = read_studies("zhang2015")[name]
    if name.startswith("delayed"):
        (workers,) = study.numbers("nodes")
        bounds = [side * delayed_rate_bound(int(workers) - 1) for side in (DELAYED_BELOW, DELAYED_ABOVE)]
        assert study.numbers("optimizer.lr") == pytest.approx(bounds, rel=1e-9)
    else:
        bounds = [side * moving_rate_bound(*study.numbers("optimizer.lr")) for side in (BELOW, ABOVE)]
        assert study.numbers("algo.alpha") == pytest.approx(bounds, rel=1e-9)


@each_row(("lr_h", "stable"), [(1e-3, False), (1e-2, True)])
def test_admm_grows_as_its_radius_says(lr_h: float, stable: bool) -> None:
    """The iteration, written as in the paper, against the spectral radius of its map."""
    workers, rho, rounds = 3, 2.5, 20_000
    x, multipliers, centre = np.ones(workers), np.zeros(workers), 1.0
    largest = []
    for _ in range(rounds):
        for i in range(workers):
            multipliers[i] -= x[i] - centre
            x[i] = (x[i] - lr_h * x[i] + lr_h * rho * (multipliers[i] + centre)) / (1 + lr_h * rho)
            centre = float(np.mean(x - multipliers))
        largest.append(np.abs([*x, *multipliers, centre]).max())
    first, last = (max(largest[end - 2000 : end]) for end in (rounds // 2, rounds))
    radius = admm_radius(workers, lr_h, rho)
    assert (radius < 1) is stable
    if stable:
        assert last < 1e-12
    else:
        assert (last / first) ** (2 / rounds) == pytest.approx(radius, abs=1e-5)
