"""Synchronous SGD: exactly SGD with the batch of all workers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dsgd.algorithms.sync import Sync
from dsgd.cluster import Cluster
from dsgd.data import Quadratic
from dsgd.sim.simulation import Simulation
from tests.support import reference
from tests.support.reference import Setting
from tests.support.simulated import assert_close, run, workers

UNEVEN = (1.0, 1.7, 0.6, 2.3)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(
    "setting",
    [
        Setting(),
        Setting(nodes=1),
        Setting(nodes=3, momentum=0.9, weight_decay=0.03),
        Setting(momentum=0.8, nesterov=True, gradient_s=UNEVEN, latency_s=0.3),
        Setting(halve_at=5, weight_decay=0.1, gradient_s=UNEVEN),
    ],
)
def test_agrees_with_a_numpy_loop(setting: Setting, overlap: bool):
    """x = x - lr d(mean_i g_i(x)), all workers alike, at every step."""
    assert_close(run(setting, Sync(overlap)).xs, reference.sync(setting))


@pytest.mark.parametrize("overlap", [True, False])
def test_workers_are_equal_bit_for_bit_between_any_two_events(overlap: bool):
    """One update from one mean: all workers take it in the same event, stragglers and jitter or not."""
    cluster = Cluster(1.0, 1e3, 0.2, slow_nodes={2: 3.0}, jitter=0.3)
    seen = 0

    def observe(simulation: Simulation) -> None:
        nonlocal seen
        xs = workers(simulation)
        seen += 1
        assert (xs == xs[0]).all()

    path = run(Setting(momentum=0.9), Sync(overlap), cluster, observe=observe)
    assert seen >= 12
    assert path.marks[-1]["consensus_distance"] == path.marks[-1]["discrepancy"] == 0


@pytest.mark.parametrize("lr", [0.3, 1.0, 1.9, 2.1])
def test_error_on_exact_quadratics_shrinks_by_1_minus_lr_h(lr: float):
    """x_t - c = (1 - lr h)^t (x_0 - c) in every coordinate: stable up to lr h = 2."""
    s = Setting(lr=lr, steps=30, data=Quadratic(dim=6, noise=0))
    path = run(s, Sync())
    t = np.arange(s.steps + 1)[:, None]
    assert_close(path.xs[:, 0] - s.target, (1 - lr * s.h) ** t * -s.target, 1e-11)
    losses = np.array([mark["test_loss"] for mark in path.marks])
    assert_close(losses, 0.5 * (s.h * (path.xs[:, 0] - s.target) ** 2).sum(axis=1))
    assert (losses[-1] < losses[0]) == (lr < 2)


def test_stationary_variance_falls_as_one_over_the_workers():
    """Noise of variance sigma^2 per worker leaves lr sigma^2 / (p h (2 - lr h)) in every coordinate."""
    s = Setting(nodes=4, lr=0.2, steps=500, data=Quadratic(dim=1500, condition=2, spread=0, noise=0.7), seed=0)
    s = replace(s, start=np.tile(s.target, (s.nodes, 1)))
    errors = run(s, Sync()).xs[100:, 0] - s.target
    expected = s.lr * s.data.noise**2 / (s.nodes * s.h * (2 - s.lr * s.h))
    assert np.mean(errors**2 / expected) == pytest.approx(1, abs=0.03)
