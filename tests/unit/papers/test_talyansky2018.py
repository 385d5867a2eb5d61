"""Verdicts on Talyansky et al. 2018, on runs that never ran."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from studies.papers import talyansky2018
from studies.reproduction.logged import Logged
from studies.reproduction.verdict import Verdict
from tests.support import logged
from tests.support.contenders import contender
from tests.support.each_row import each_row

PASS, FAIL, EXPLAINED, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.EXPLAINED, Verdict.INCONCLUSIVE


def accuracies(gains: Sequence[float]) -> Logged:
    exact = contender("sync", [1.0] * 5)
    late = contender("delayfree", [1.0] * 5)
    for run, other, gain in zip(late.runs, exact.runs, gains, strict=True):
        assert run.summary is not None
        run.summary["test_accuracy"] = other.final("test_accuracy") + gain
    return logged.contest(exact, late)


@each_row(
    ("short", "long", "verdict"),
    [
        ([-0.004, 0.0, 0.0, 0.0, 0.01], [-0.1] * 5, PASS),
        ([-0.006, 0.0, 0.0, 0.0, 0.01], [0.0] * 5, OPEN),
        ([-0.02] * 4 + [-0.006], [0.0] * 5, EXPLAINED),
        ([-0.02] * 4 + [-0.006], [-0.02] * 5, FAIL),
    ],
)
def test_t3_wants_the_whole_interval_within_half_a_point(
    short: list[float], long: list[float], verdict: Verdict
) -> None:
    assert talyansky2018.t3({"accuracy": accuracies(short), "accuracy_longer": accuracies(long)}).verdict is verdict


def distances(algo: str, growth: float, **settings: int) -> list:
    """From 2 to 16 workers the distance grows by this factor, along a power law."""
    return [
        logged.run(
            algo,
            {"nodes": nodes, "seed": seed, **{f"algo.{key}": value for key, value in settings.items()}},
            [{"pairwise_distance_median": growth ** (i / 3)}] * 4,
        )
        for i, nodes in enumerate((2, 4, 8, 16))
        for seed in range(3)
    ]


@each_row(
    ("easgd", "downpour", "delayfree", "verdict"),
    [(1.6, 1.0, 1.0, PASS), (1.0, 1.6, 1.09, PASS), (1.4, 1.4, 1.0, FAIL), (3.0, 3.0, 1.2, FAIL)],
)
def test_t5_wants_one_of_the_others_to_grow_and_delayfree_at_no_tau(
    easgd: float, downpour: float, delayfree: float, verdict: Verdict
) -> None:
    found = {
        "drift": logged.study(*distances("delayfree", 1.0, tau=16), *distances("delayfree", delayfree, tau=32)),
        "methods": logged.study(*distances("easgd", easgd), *distances("downpour", downpour)),
    }
    assert talyansky2018.t5(found).verdict is verdict


@each_row(("nodes", "tau"), [(2, 2), (4, 8), (3, 6)])
def test_the_closed_form_of_a_distance_is_that_of_the_recursion(nodes: int, tau: int) -> None:
    """One coordinate of the workers, whose covariance follows each step and each exchange of Algorithm 2."""
    rate, beta = talyansky2018.LR, tau // 2
    centred = np.eye(nodes) - 1 / nodes
    state = np.zeros((2 * nodes, 2 * nodes))  # covariance of (x, where each began its cycle)
    step_map = np.kron(np.diag([1 - rate, 1.0]), np.eye(nodes))
    mean = np.full((nodes, nodes), 1 / nodes)
    exchange = np.block([[np.eye(nodes), mean - np.eye(nodes)], [np.eye(nodes), mean - np.eye(nodes)]])
    noise = np.kron(np.diag([(rate * talyansky2018.NOISE) ** 2, 0.0]), np.eye(nodes))
    for step in range(1, 5 * beta + 2):
        state = step_map @ state @ step_map.T + noise
        if step % beta == 0:
            state = exchange @ state @ exchange.T
        apart = np.trace(centred @ state[:nodes, :nodes] @ centred) / nodes
        assert talyansky2018.expected_distance(nodes, tau, step) == pytest.approx(talyansky2018.DIM * apart)
