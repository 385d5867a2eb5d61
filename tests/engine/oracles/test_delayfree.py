"""Delay-free averaging: nothing is lost on the mean, and workers drift apart by their last displacements only."""

from __future__ import annotations

import numpy as np
import pytest

from dsgd.algorithms.delayfree import DelayFree
from dsgd.algorithms.sync import Sync
from dsgd.data import Quadratic
from tests.support import reference
from tests.support.reference import Setting
from tests.support.simulated import assert_close, cluster_of, run

SPREAD = np.random.default_rng(8).standard_normal((4, 5))


@pytest.mark.parametrize(
    ("setting", "tau"),
    [
        (Setting(steps=13), 2),
        (Setting(steps=13, momentum=0.8, weight_decay=0.05, start=SPREAD), 4),
        (Setting(steps=13, momentum=0.8, nesterov=True, halve_at=6), 10),
        (Setting(steps=13), 60),
    ],
)
def test_agrees_with_a_numpy_loop(setting: Setting, tau: int):
    """x_i = P + (x_i - s_i) every tau / 2 steps and after the last one, P the mean of the s_i; momentum lives on."""
    assert_close(run(setting, DelayFree(tau)).xs, reference.delayfree(setting, tau))


def test_mean_moves_by_the_mean_gradient():
    """mean' = mean - lr mean_i g_i(x_i) at every step, merges included: with equal curvature, the path of sync."""
    s = Setting(lr=0.2)
    path = run(s, DelayFree(6))
    for k in range(s.steps):
        assert_close(path.mean[k + 1], path.mean[k] - s.lr * s.gradients(k, path.xs[k]).mean(axis=0))
    assert_close(path.mean, run(s, Sync()).xs[:, 0])


@pytest.mark.parametrize("nodes", [2, 8])
def test_discrepancy_from_noise_is_independent_of_the_workers(nodes: int):
    """Pure noise: E (x_i - x_j)^2 = 2 beta (lr sigma)^2 per coordinate after a merge, no p in it."""
    beta, steps = 4, 24
    # all but the first few of the curvatures are nothing
    data = Quadratic(dim=3000, condition=1e300, spread=0, noise=0.5)
    s = Setting(nodes, steps, lr=0.1, data=data, seed=0)
    flat = s.h < 1e-12
    assert flat.mean() > 0.9
    ends = run(s, DelayFree(2 * beta)).xs[beta::beta][:, :, flat]
    expected = 2 * beta * (s.lr * data.noise) ** 2
    assert np.mean((ends[:, 0] - ends[:, 1]) ** 2) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("tau", "lr"), [(2, 0.9), (6, 1.2)])
def test_deviations_follow_their_recursion(tau: int, lr: float):
    """dev' = (r - 1)(dev - (c_i - c)) with r = (1 - lr h)^beta, from one merge to the next, on exact quadratics."""
    s = Setting(lr=lr, data=Quadratic(dim=5, noise=0), start=SPREAD)
    path, beta = run(s, DelayFree(tau)), tau // 2
    r = (1 - s.lr * s.h) ** beta
    for end in range(beta, s.steps + 1, beta):
        before, after = (path.xs[k] - path.mean[k] for k in (end - beta, end))
        assert_close(after, (r - 1) * (before - (s.minima - s.target)), 1e-11)


@pytest.mark.parametrize(("lr", "shrinks"), [(0.98, True), (1.02, False)])
def test_one_step_cycles_are_stable_up_to_lr_h_1(lr: float, shrinks: bool):
    """beta = 1: deviations are multiplied by -lr h in every cycle, although the mean alone would bear 2."""
    s = Setting(lr=lr, steps=60, data=Quadratic(2, 1.0, spread=0, noise=0), start=SPREAD[:, :2])
    path = run(s, DelayFree(tau=2))
    spread = ((path.xs - path.mean[:, None]) ** 2).sum(axis=(1, 2))
    assert (spread[60] < spread[30]) == shrinks
    # the mean converges all the same; for growing deviations only as far as rounding lets it
    assert np.abs(path.mean[-1] - s.target).max() < 1e-6
    assert spread[60] / spread[0] == pytest.approx(lr**120, rel=1e-6)


def test_an_all_reduce_shorter_than_its_cycle_costs_no_time():
    """The all-reduce runs during the cycle: as long as it is the shorter one, a step costs its gradient and no more."""
    s = Setting(
        steps=12, latency_s=0.4
    )  # of the three collectives, 4 nodes and no bytes: 4 messages one after the other
    path = run(s, DelayFree(tau=4), cluster_of(s))
    assert path.marks[-1]["time_s"] == pytest.approx(12.0, rel=1e-12)


@pytest.mark.parametrize(("nodes", "tau"), [(2, 16), (12, 2)])
def test_the_regret_exceeds_that_of_sequential_learning_by_the_discrepancy_alone(nodes: int, tau: int):
    """The paper's theorem where all is known. On one convex quadratic the mean of the workers is sequential SGD, so the
    regret of the workers' own vectors is its regret and h / 2 times their squared distance from the mean. A worker
    enters a cycle of beta steps with the noise of the one before: at step k it holds that of beta + k steps, so with
    small rates a step costs h / 2 (lr sigma)^2 (1 - 1 / p) (3 beta - 1) / 2 more in each coordinate: it grows with tau,
    and with more workers hardly."""
    s = Setting(nodes, 48, lr=1e-3, data=Quadratic(dim=400, condition=1, spread=0, noise=1))
    path, sequential = run(s, DelayFree(tau)), run(s, Sync())
    assert_close(path.mean, sequential.mean, 1e-12)
    beta = tau // 2
    of_step = [0.5 * ((xs[beta:-1] - s.target) ** 2).mean() for xs in (path.xs, sequential.xs)]
    expected = 0.5 * s.lr**2 * (1 - 1 / nodes) * (3 * beta - 1) / 2
    assert of_step[0] - of_step[1] == pytest.approx(expected, rel=0.06)
    assert of_step[0] == pytest.approx(of_step[1], rel=1e-4)  # while the discrepancy is small
