"""Verdicts on Decoupled DiLoCo and HALoS, on runs that never ran."""

from __future__ import annotations

import re
from types import ModuleType

import numpy as np
import pytest

from studies.papers import assran2019, douillard2023, douillard2026, kale2025, kim2025, read_studies
from studies.reproduction.logged import Logged
from studies.reproduction.verdict import Verdict
from tests.support import logged
from tests.support.each_row import each_row

PASS, FAIL, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


def throughputs(sync: float, decoupled: float, spread: float = 0.0, seeds: int = 10) -> Logged:
    runs = [
        logged.run(algo, {"seed": seed}, time_s=100.0, samples=100 * share * (1 + spread * (seed - 4.5)))
        for algo, share in (("sync", sync), ("decoupled", decoupled))
        for seed in range(seeds)
    ]
    return logged.study(*runs)


def goodputs(sync: float, decoupled: float, measured: float = 0.93, spread: float = 0.0) -> dict[str, Logged]:
    whole = throughputs(1.0, 1.0, seeds=1)
    return {
        "exponential": throughputs(sync, decoupled, spread),
        "measured": throughputs(0.5, measured),
        "exponential_whole": whole,
        "measured_whole": whole,
    }


@each_row(
    ("sync", "decoupled", "measured", "verdict"),
    [
        (0.58, 0.934, 0.93, PASS),
        (0.58, 0.91, 0.93, FAIL),  # not what remains where nobody waits
        (0.58, 0.96, 0.93, FAIL),
        (0.58, 0.934, 0.87, FAIL),
        (0.63, 0.934, 0.93, FAIL),  # failures are not those of the claim
    ],
)
def test_d1_wants_what_remains_where_nobody_waits(
    sync: float, decoupled: float, measured: float, verdict: Verdict
) -> None:
    assert douillard2026.d1(goodputs(sync, decoupled, measured)).verdict is verdict


def test_d1_is_open_where_the_seeds_do_not_decide() -> None:
    assert douillard2026.d1(goodputs(0.58, 0.934, spread=0.02)).verdict is OPEN


def test_d1_allots_to_each_learner_what_leaves_the_published_share_to_all() -> None:
    *_, failures = read_studies("douillard2026")["measured"].overrides
    every_s, repair_s, median_s = map(float, re.findall(r": ([\d.]+)", failures))
    assert every_s == douillard2026.FAILS_EVERY_S
    assert (every_s / (every_s + repair_s)) ** douillard2026.LEARNERS == pytest.approx(0.58, rel=1e-5)
    assert median_s / repair_s == pytest.approx(20 / 133, rel=1e-5)
    assert failures.startswith(read_studies("douillard2026")["exponential"].overrides[-1].rstrip("}"))


@each_row("paper", [kale2025, assran2019])
def test_the_time_of_a_gradient_makes_the_published_hours(paper: ModuleType) -> None:
    for study in paper.PAPER.studies:
        assert study.numbers("cluster.gradient_s") == pytest.approx([paper.GRADIENT_S], rel=1e-8)


def test_d3_has_rates_that_remove_the_same_of_an_error_in_every_round() -> None:
    """And runs of 24 time constants of it: the root of r^2 - (1 + beta) (1 - olr a) r + beta (1 - olr a) is left."""
    for study in read_studies("douillard2023").values():
        (beta,), (tau,), (rate,) = (study.numbers(key) for key in ("algo.beta", "algo.tau", "optimizer.lr"))
        removed = douillard2023.removed(beta)
        assert 1 - (1 - rate) ** tau == pytest.approx(removed, rel=1e-7)
        kept = 1 - douillard2023.OLR * removed
        left = max(np.roots([1, -(1 + beta) * kept, beta * kept]).real)
        assert study.numbers("budget.steps") == (round(24 / (1 - left)) * tau,)


def sample_times(synchronous: dict[float, float], asynchronous: dict[float, float]) -> dict[str, Logged]:
    """Return runs of all methods at all times of a gradient. arguments: times over those of HALoS, 1 if not here."""
    over = {"synchronous": synchronous, "asynchronous": asynchronous, "halos": {}}
    return {
        f"{method}_{times}": logged.study(
            *(
                logged.run("asyncdiloco", {"cluster.gradient_s": t}, time_s=ratios.get(t, 1.0), samples=10)
                for t in kim2025.GRADIENTS_S
            )
        )
        for method, ratios in over.items()
        for times in (*kim2025.TIMES, "longer")
    }


@each_row(
    ("synchronous", "asynchronous", "verdict"),
    [
        ({0.1: 7.6}, {0.1: 2.2}, Verdict.REGION),
        ({0.1: 7.6}, {3.0: 2.2}, FAIL),  # not with the same gradients
        ({0.1: 7.4}, {0.1: 2.2}, FAIL),
        ({0.1: 7.6}, {0.1: 2.0}, FAIL),
    ],
)
def test_d2_holds_where_halos_is_sooner_than_both(
    synchronous: dict[float, float], asynchronous: dict[float, float], verdict: Verdict
) -> None:
    assert kim2025.d2(sample_times(synchronous, asynchronous)).verdict is verdict


def test_the_workers_of_halos_have_the_published_speeds_in_every_region() -> None:
    (slow,) = [word for word in read_studies("kim2025")["halos_steady"].overrides if word.startswith("cluster.slow")]
    factors = {int(rank): float(factor) for rank, factor in re.findall(r"(\d+): ([\d.]+)", slow)}
    speeds = sorted(1 / factor for factor in factors.values())
    assert speeds == pytest.approx(np.linspace(0.107, 0.907, 16), rel=1e-3)
    regions = np.array([1 / factors[rank] for rank in range(16)]).reshape(4, 4)
    assert (np.diff(regions, axis=1) < 0).all()  # the local server is at the fastest worker
    assert regions.mean(axis=1) == pytest.approx(regions.mean(), abs=0.1)
