"""Delay-free averaging: a NumPy loop, and the theorem of its paper."""

from __future__ import annotations

import numpy as np
import pytest

from dsgd.algorithms.delayfree import DelayFree
from dsgd.algorithms.sync import Sync
from dsgd.data import Quadratic
from tests.support import reference
from tests.support.reference import Setting
from tests.support.simulated import assert_close, run

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
