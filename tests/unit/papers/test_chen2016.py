"""The claim of Chen et al. 2016 on runs made by hand, and its formula against draws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from studies.papers.chen2016 import BACKUPS, CLUSTERS, GRADIENT_S, NODES, TAILS, a5, longest
from studies.reproduction.logged import Logged
from studies.reproduction.verdict import Verdict
from tests.support.each_row import each_row
from tests.support.logged import run, study

Steps = Callable[[str, int, int], float]  # time of a step in mean gradients: tail, nodes, backups


def evidence(step: Steps) -> dict[str, Logged]:
    """Return runs with these times of a step; seeds of those with backups differ by 0.1 %."""
    found = {}
    for tail in TAILS:
        alone = [(p, 0, 0) for p in NODES]
        together = [(p, b, seed) for p in CLUSTERS for b in BACKUPS for seed in range(3)]
        for kind, points in (("slowest", alone), ("backups", together)):
            found[f"{kind}_{tail}"] = study(
                *(
                    run(
                        settings={"nodes": p, "seed": seed, "algo.backups": b},
                        steps=10,
                        time_s=10 * GRADIENT_S * step(tail, p, b) * (1 + 0.001 * seed),
                    )
                    for p, b, seed in points
                )
            )
    return found


def by_formula(tail: str, p: int, b: int) -> float:
    return longest(tail, p, p - b)


def test_a5_passes_where_steps_last_as_long_as_the_longest_gradient_and_backups_are_of_use() -> None:
    assert a5(evidence(by_formula)).verdict is Verdict.PASS


@each_row("tail", TAILS)
@each_row(("factor", "verdict"), [(1.029, Verdict.PASS), (1.031, Verdict.FAIL), (0.969, Verdict.FAIL)])
def test_a5_allows_three_percent(tail: str, factor: float, verdict: Verdict) -> None:
    def step(of: str, p: int, b: int) -> float:
        return by_formula(of, p, b) * (factor if of == tail else 1.0)

    assert a5(evidence(step)).verdict is verdict


@each_row("tail", TAILS)
def test_a5_fails_where_backups_are_of_no_use_with_either_kind_of_times(tail: str) -> None:
    def step(of: str, p: int, b: int) -> float:
        return by_formula(of, p, 0 if of == tail else b)

    assert a5(evidence(step)).verdict is Verdict.FAIL


@each_row("k", [1, 5, 8])
@each_row("tail", TAILS)
def test_the_kth_of_p_is_that_of_draws(tail: str, k: int) -> None:
    rng = np.random.default_rng(0)
    draws = rng.exponential(size=(100_000, 8)) if tail == "exponential" else rng.normal(1, 0.1, size=(100_000, 8))
    assert longest(tail, 8, k) == pytest.approx(np.sort(draws)[:, k - 1].mean(), rel=0.01)
