"""Downpour: stale gradients, and nothing lost at the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import pi, sin

import numpy as np
import pytest

from dsgd.algorithms.downpour import Downpour
from dsgd.algorithms.sync import Sync
from dsgd.cluster import Cluster
from dsgd.data import Quadratic
from tests.support import reference
from tests.support.reference import Rule, Setting
from tests.support.simulated import assert_close, run

UNEVEN = (1.0, 1.7131, 0.6217, 2.3549)
# A vector takes 0.01 s, so equal workers reach the server one after the other; each fetches before the next one pushes.
IN_TURN = Cluster(1.0, 800.0, 0.0, message_bytes=1)


FAST = Setting(gradient_s=UNEVEN, latency_s=0.1357, momentum=0.7, weight_decay=0.05)
SLOW = Setting(gradient_s=UNEVEN, latency_s=1.1357, momentum=0.7, nesterov=True, halve_at=5)


@pytest.mark.parametrize(
    ("setting", "n_push", "n_fetch"), [(FAST, 1, 1), (SLOW, 1, 3), (SLOW, 3, 1), (FAST, 3, 2), (Setting(steps=6), 2, 2)]
)
def test_agrees_with_a_numpy_loop(setting: Setting, n_push: int, n_fetch: int):
    """Algorithm 1 with a plain server: fetch, gradient, push of what has accumulated, local step."""
    path = run(setting, Downpour(n_push, n_fetch))
    xs, c = reference.downpour(setting, n_push, n_fetch, reference.server_sgd())
    assert_close(path.xs[-1], xs)
    assert_close(path.c[-1], c)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (Downpour(server_optimizer="momentum", server_momentum=0.6), lambda: reference.server_momentum(0.6)),
        (Downpour(2, 2, server_optimizer="adagrad"), reference.server_adagrad),
        (Downpour(2, 3), reference.server_sgd),
    ],
)
def test_server_rules_agree_with_a_numpy_loop(options: Downpour, rule: Callable[[], Rule]):
    """The server's optimiser acts on each push as it arrives, coordinate by coordinate, so shards change nothing."""
    s = Setting(gradient_s=UNEVEN, latency_s=0.2468, steps=20, halve_at=10)
    path = run(s, replace(options, servers=3))
    xs, c = reference.downpour(s, options.n_push, options.n_fetch, rule())
    assert_close(path.xs[-1], xs)
    assert_close(path.c[-1], c)


def test_one_worker_is_sgd_at_every_kth_step():
    """n_push = n_fetch = k: the server has the sum of the same k gradients, and moves every k steps only."""
    k, s = 3, Setting(nodes=1)
    c, x = run(s, Downpour(k, k)).c, run(s, Sync()).xs[:, 0]
    assert_close(c[::k], x[::k])
    assert (c[1] == c[0]).all()


def test_fetching_more_often_than_pushing_discards_local_steps():
    """One worker, n_fetch = 1 < n_push = 2: both gradients of a push are taken at the same point, which is not SGD."""
    s = Setting(nodes=1, steps=8)
    c = run(s, Downpour(2, 1)).c
    expected = s.c()
    for t in range(0, s.steps, 2):
        expected = expected - s.lr * (s.gradient(0, t, expected) + s.gradient(0, t + 1, expected))
        assert_close(c[t + 2], expected)
    assert np.abs(c[-1] - run(s, Sync()).xs[-1, 0]).max() > 1e-3


def test_equal_workers_in_turn_are_sgd_with_a_delay_of_p_minus_1():
    """y_{t+1} = y_t - lr g_{t mod p}(y_{t - (p - 1)}), the first p gradients all at the start."""
    p, s = 4, Setting(4, steps=10)
    path = run(s, Downpour(), IN_TURN, mark_samples=1)
    y = [s.c()]
    for t in range(s.samples):
        y.append(y[-1] - s.lr * s.gradient(t % p, t // p, y[max(0, t - (p - 1))]))
    assert_close(path.c, np.array(y))
    assert path.marks[-1]["staleness_max"] == p - 1


def test_delay_bounds_the_rate():
    """With a delay of s updates, lr h <= 2 sin(pi / (2 (2 s + 1))): 1 for s = 1, 0.4450 for s = 3."""
    p = 2
    bound = 2 * sin(pi / (2 * (2 * (p - 1) + 1)))
    for share in (0.97, 1.03):
        s = Setting(p, 400 // p, share * bound, data=Quadratic(dim=1, spread=0, noise=0))
        errors = np.abs(run(s, Downpour(), IN_TURN, mark_samples=1).c - s.target)
        # it oscillates, so compare the largest error of two windows
        assert (errors[350:400].max() < errors[150:200].max()) == (share < 1)


def test_equal_workers_without_network_add_up_their_gradients():
    """All push at the same moment and then fetch: c = c - lr sum_i g_i(c), an error factor of 1 - p lr h."""
    s = Setting(lr=0.2, data=Quadratic(dim=5, noise=0))
    path = run(s, Downpour(), mark_samples=s.samples)
    assert_close(path.c[-1] - s.target, (1 - s.nodes * s.lr * s.h) ** s.steps * -s.target, 1e-10)


def test_local_momentum_does_nothing_when_every_step_fetches():
    """The recipe to warn of: the same centre with and without, bit for bit; with n_fetch = 2 another one."""
    with_it, without = (Setting(gradient_s=UNEVEN, momentum=momentum) for momentum in (0.9, 0.0))
    assert (run(with_it, Downpour()).c == run(without, Downpour()).c).all()
    assert (run(with_it, Downpour(n_fetch=2)).c != run(without, Downpour(n_fetch=2)).c).any()
