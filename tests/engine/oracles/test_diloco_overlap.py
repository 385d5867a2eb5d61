"""Delayed and eager outer steps of DiLoCo: their recurrences, where they are stable, and their time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.algorithms.diloco import OUTER, DiLoCo
from dsgd.cluster import Cluster
from dsgd.data import Quadratic
from tests.support import reference
from tests.support.reference import Array, Setting
from tests.support.simulated import assert_close, run
from tests.support.timing import timed

LATE = ("delayed", "eager")
SPREAD = np.random.default_rng(8).standard_normal((8, 5))


def start(nodes: int) -> Array:
    """The same point, not the target, for all workers."""
    return np.tile(SPREAD[0], (nodes, 1))


OWN = Setting(steps=13, start=start(4), data=Quadratic(dim=5, curvature_spread=0.5))
DECAYING = Setting(steps=13, nodes=3, start=start(3), momentum=0.8, nesterov=True, weight_decay=0.05, halve_at=6)


@pytest.mark.parametrize("overlap", LATE)
@pytest.mark.parametrize(
    ("outer", "tau", "setting"),
    [("nesterov", 3, DECAYING), ("heavy_ball", 1, OWN), ("slowmo", 3, DECAYING)],
)
def test_agrees_with_a_numpy_loop(setting: Setting, tau: int, outer: str, overlap: str) -> None:
    path = run(setting, DiLoCo(tau, outer, olr=0.4, beta=0.6, overlap=overlap))
    xs, centres = reference.diloco(setting, tau, outer, 0.4, 0.6, overlap)
    assert_close(path.xs, xs)
    if overlap == "delayed":
        assert_close(path.c, centres[:, 0])
    else:
        ends = [*range(0, setting.steps, tau), setting.steps]  # of rounds: there x_i is theta_i
        assert_close(path.mean[ends], centres[ends].mean(axis=1))


@pytest.mark.parametrize("overlap", LATE)
def test_where_it_ends_when_curvatures_differ(overlap: str) -> None:
    """At the mean of the workers' own minima with the weights a_i, as without overlap, but with eager a / (1 + olr a /
    (p (1 - beta))): its workers end apart, by the share of a difference that each of them sees alone."""
    p, tau, olr, beta = 4, 5, 0.3, 0.5
    s = Setting(p, steps=600, lr=0.4, data=Quadratic(dim=5, condition=2, noise=0, curvature_spread=0.5))
    path = run(s, DiLoCo(tau, olr=olr, beta=beta, overlap=overlap), mark_samples=s.samples)
    C, a = s.minima, 1 - (1 - s.lr * s.hs) ** tau
    eager = a / (1 + olr * a / (p * (1 - beta)))
    weights = a if overlap == "delayed" else eager
    m = (weights * C).sum(axis=0) / weights.sum(axis=0)
    assert_close(path.mean[-1], m, 1e-10)
    away = -olr / (p * (1 - beta)) * eager * (m - C) if overlap == "eager" else np.zeros_like(C)
    assert_close(path.xs[-1], m + away, 1e-10)


@settings(max_examples=40)
@given(st.sampled_from(OUTER), st.sampled_from(("none", *LATE)), st.floats(0, 0.99), st.integers(1, 100))
def test_the_limit_is_where_a_root_of_the_recurrence_leaves_the_unit_circle(
    outer: str, overlap: str, beta: float, nodes: int
) -> None:
    """(z - beta) (z - 1) z = -olr (own z + late) times (1 + beta) z - beta with Nesterov's, z with heavy ball."""
    own = {"none": 1.0, "delayed": 0.0, "eager": 1 / nodes}[overlap]
    still, gain = np.polymul([1, -beta], [1, -1, 0]), [1 + beta, -beta] if outer == "nesterov" else [1, 0]

    def largest(olr: float) -> float:
        return np.abs(np.roots(np.polyadd(still, olr * np.polymul([own, 1 - own], gain)))).max()

    limit = DiLoCo(4, outer, 1.0, beta, overlap).limit(nodes)
    assert largest(limit * (1 - 1e-4)) < 1 + 1e-9
    assert largest(limit * (1 + 1e-4)) > 1 + 1e-9


@settings(max_examples=15)
@given(st.integers(2, 12), st.integers(1, 5), st.floats(1e-3, 20.0), st.floats(0, 0.1), st.sampled_from(LATE))
def test_an_average_that_takes_longer_than_a_round_is_waited_for(
    p: int, tau: int, transfer_s: float, a: float, overlap: str
) -> None:
    """A round takes max(tau t, T), but the first, with which nothing travels."""
    t = 1.0
    cluster = Cluster(t, 8e6 / transfer_s, a, message_bytes=1e6, collective="ring")
    simulation = timed(DiLoCo(tau, overlap=overlap), cluster, p, steps=6 * tau)
    T = 2 * (p - 1) * (a + transfer_s / p)
    assert simulation.time_s == pytest.approx(tau * t + 5 * max(tau * t, T), rel=1e-9)
    sent = simulation.machine.network.bytes_sent(simulation.time_s)
    assert sent == pytest.approx([5 * 2 * (p - 1) / p * 1e6] * p, rel=1e-9)
