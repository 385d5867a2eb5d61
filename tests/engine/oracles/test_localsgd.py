"""Local SGD: all-reduce at tau = 1, and between averages as far apart as independent walks."""

from __future__ import annotations

import numpy as np
import pytest

from dsgd.algorithms.localsgd import MOMENTUM, LocalSGD
from dsgd.algorithms.sync import Sync
from dsgd.cluster import Cluster
from dsgd.data import Quadratic
from tests.support import reference
from tests.support.reference import Setting
from tests.support.simulated import assert_close, run

SPREAD = np.random.default_rng(8).standard_normal((4, 5))


HEAVY = Setting(steps=13, momentum=0.8, weight_decay=0.05, start=SPREAD)
NESTEROV = Setting(steps=13, momentum=0.8, nesterov=True, halve_at=6)


@pytest.mark.parametrize("momentum", MOMENTUM)
@pytest.mark.parametrize(("setting", "tau", "switch"), [(HEAVY, 3, 0), (NESTEROV, 4, 5)])
def test_agrees_with_a_numpy_loop(setting: Setting, tau: int, switch: int, momentum: str) -> None:
    found = run(setting, LocalSGD(tau, switch, momentum)).xs
    assert_close(found, reference.localsgd(setting, tau, switch, momentum))


@pytest.mark.parametrize(
    ("setting", "tau", "switch", "group", "inner_tau", "momentum"),
    [
        (Setting(6, 13, momentum=0.8, weight_decay=0.05), 4, 0, 2, 2, "keep"),
        (Setting(6, 13, momentum=0.8), 6, 3, 3, 2, "zero"),
        (Setting(12, 13, momentum=0.8, halve_at=6), 3, 0, 2, 1, "average"),
    ],
)
def test_groups_agree_with_a_numpy_loop(
    setting: Setting, tau: int, switch: int, group: int, inner_tau: int, momentum: str
) -> None:
    found = run(setting, LocalSGD(tau, switch, momentum, group, inner_tau)).xs
    assert_close(found, reference.localsgd(setting, tau, switch, momentum, group, inner_tau), 1e-10)


def test_one_group_of_all_is_local_sgd_of_its_steps() -> None:
    s = Setting(nodes=4, steps=14, momentum=0.8, start=SPREAD)
    assert_close(run(s, LocalSGD(6, 0, "average", 4, 2)).xs, run(s, LocalSGD(2, 0, "average")).xs, 1e-12)


def test_groups_that_never_meet_are_runs_of_their_own() -> None:
    """With tau beyond the run each is local SGD of inner_tau; after an average all in it are one, bit for bit."""
    s = Setting(nodes=6, steps=8, momentum=0.5)
    xs = run(s, LocalSGD(tau=100, group=3, inner_tau=2)).xs
    for ranks in ([0, 1, 2], [3, 4, 5]):
        X, V = np.zeros((3, s.data.dim)), np.zeros((3, s.data.dim))
        for k in range(s.steps):
            V = s.momentum * V + [s.gradient(rank, k, x) for rank, x in zip(ranks, X, strict=True)]
            X = X - s.lr * V
            if k % 2 == 1 and k < s.steps - 1:
                X = np.tile(X.mean(axis=0), (3, 1))
                assert (xs[k + 1, ranks] == xs[k + 1, ranks[0]]).all()
            assert_close(xs[k + 1, ranks], X, 1e-12)
    assert np.abs(xs[-1, 0] - xs[-1, 3]).max() > 1e-3


def test_groups_that_are_islands_send_nothing_between_them_but_in_the_averages_of_all() -> None:
    """7 steps, tau = 6, inner_tau = 2: two averages of groups, 2 N from each worker, then an all-reduce, which takes N
    through each uplink, 4 s that nothing interrupts, and a latency of 1 s."""
    s = Setting(nodes=6, steps=7)
    islands = Cluster(1.0, np.inf, 0.0, message_bytes=48.0, islands=2, wan_bandwidth=96.0, wan_latency_s=1.0)
    path = run(s, LocalSGD(tau=6, group=3, inner_tau=2), islands)
    assert path.simulation.summary()["bytes_between_islands"] == 2 * 48
    assert path.marks[-1]["bytes_sent"] == pytest.approx(6 * (2 * 2 + 2 * 5 / 6) * 48)
    assert path.marks[-1]["time_s"] == pytest.approx(7 + 4 + 1)


@pytest.mark.parametrize(("momentum", "nesterov"), [("keep", True), ("average", False)])
def test_with_an_average_after_every_step_it_is_synchronous_sgd(momentum: str, nesterov: bool) -> None:
    """Momentum is linear: the mean of the steps is the step of the mean. The last step is not averaged."""
    s = Setting(steps=30, momentum=0.9, nesterov=nesterov, weight_decay=0.05)
    for switch in (0, 7):
        path = run(s, LocalSGD(1, switch, momentum))
        assert_close(path.xs[:-1], run(s, Sync()).xs[:-1], 1e-10)
        assert_close(path.mean[-1], run(s, Sync()).mean[-1], 1e-10)


def test_within_a_round_workers_drift_apart_as_their_noise() -> None:
    """k steps after an average the mean square of x_i - mean is lr^2 sigma^2 (1 - 1/p) (1 - r^2k) / (1 - r^2)."""
    nodes, tau, data = 2, 6, Quadratic(dim=2000, condition=2, spread=0, noise=0.7)
    s = Setting(nodes, 5 * tau, lr=0.3, data=data, seed=0)
    path, r = run(s, LocalSGD(tau)), 1 - s.lr * s.h
    for k in range(tau):
        found = np.mean([(path.xs[tau * n + k] - path.mean[tau * n + k]) ** 2 for n in range(5)], axis=(0, 1))
        expected = (s.lr * data.noise) ** 2 * (1 - 1 / nodes) * (1 - r ** (2 * k)) / (1 - r**2)
        assert np.mean(found) == pytest.approx(np.mean(expected), rel=0.05, abs=1e-20)


def test_a_round_waits_for_the_slowest_sum_of_its_gradients_and_sends_one_vector() -> None:
    """9 steps of 1 s and two all-reduces among two workers, of two messages of half a vector each: 2 (a + N / 2B)."""
    s = Setting(nodes=2, steps=9)
    path = run(s, LocalSGD(4), Cluster(1.0, 800.0, 0.25, message_bytes=50.0))
    assert path.marks[-1]["time_s"] == pytest.approx(9 + 2 * 2 * (0.25 + 25 / 100), rel=1e-12)
    assert path.marks[-1]["bytes_sent"] == pytest.approx(2 * 2 * 50.0)
