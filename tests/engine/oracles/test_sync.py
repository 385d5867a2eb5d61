"""Synchronous SGD: exactly SGD with the batch of all workers, or of those that are first."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest

from dsgd.algorithms.sync import Sync
from dsgd.cluster import Cluster
from dsgd.data import Quadratic
from dsgd.engines.sim.simulation import Simulation
from dsgd.worker import Algorithm, Worker
from tests.support import reference
from tests.support.reference import Setting
from tests.support.simulated import assert_close, run, workers
from tests.support.timing import timed

UNEVEN = (1.0, 1.7, 0.6, 2.3)


@pytest.mark.parametrize(
    ("setting", "overlap"),
    [
        (Setting(nodes=3, momentum=0.9, weight_decay=0.03), True),
        (Setting(momentum=0.8, nesterov=True, gradient_s=UNEVEN, latency_s=0.3), False),
        (Setting(halve_at=5, weight_decay=0.1, gradient_s=UNEVEN), True),
    ],
)
def test_agrees_with_a_numpy_loop(setting: Setting, overlap: bool):
    """x = x - lr d(mean_i g_i(x)), all workers alike, at every step."""
    assert_close(run(setting, Sync(overlap)).xs, reference.sync(setting))


def test_workers_are_equal_bit_for_bit_between_any_two_events():
    """One update from one mean: all workers take it in the same event, stragglers and jitter or not."""
    cluster = Cluster(1.0, 1e3, 0.2, slow_nodes={2: 3.0}, jitter=0.3)
    seen = 0

    def observe(simulation: Simulation) -> None:
        nonlocal seen
        xs = workers(simulation)
        seen += 1
        assert (xs == xs[0]).all()

    path = run(Setting(momentum=0.9), Sync(), cluster, observe=observe)
    assert seen >= 12
    assert path.marks[-1]["consensus_distance"] == path.marks[-1]["discrepancy"] == 0


@pytest.mark.parametrize("lr", [1.9, 2.1])
def test_error_on_exact_quadratics_shrinks_by_1_minus_lr_h(lr: float):
    """x_t - c = (1 - lr h)^t (x_0 - c) in every coordinate: stable up to lr h = 2."""
    s = Setting(lr=lr, steps=30, data=Quadratic(dim=6, noise=0))
    path = run(s, Sync())
    t = np.arange(s.steps + 1)[:, None]
    assert_close(path.xs[:, 0] - s.target, (1 - lr * s.h) ** t * -s.target, 1e-11)
    losses = np.array([mark["test_loss"] for mark in path.marks])
    assert_close(losses, 0.5 * (s.h * (path.xs[:, 0] - s.target) ** 2).sum(axis=1))
    assert (losses[-1] < losses[0]) == (lr < 2)


# Backup workers

NEVER_EQUAL = (1.0, 1.37, 0.61, 2.29, 1.83)


class FirstOfAll(Algorithm):
    """Wait for the first gradients of all workers: for everybody's."""

    lockstep: ClassVar[bool] = True

    async def train(self, worker: Worker) -> None:
        while not worker.done:
            worker.step(await worker.mean_of_first(worker.nodes))


@pytest.mark.parametrize(
    ("setting", "backups"),
    [
        (Setting(nodes=5, gradient_s=NEVER_EQUAL, steps=30), 4),
        (Setting(nodes=5, gradient_s=NEVER_EQUAL, steps=30, momentum=0.9, weight_decay=0.03, latency_s=0.05), 1),
        (Setting(nodes=5, gradient_s=NEVER_EQUAL, steps=30, halve_at=4, latency_s=1.1), 2),
    ],
)
def test_with_backup_workers_it_agrees_with_a_numpy_loop(setting: Setting, backups: int) -> None:
    """Values, times and numbers of gradients, with workers whose late gradients last for several steps."""
    needed = setting.nodes - backups
    found = run(setting, Sync(overlap=False, backups=backups), mark_samples=needed)
    path, ends, begun = reference.backup_workers(setting, backups, of_tree_s(setting))
    assert_close(found.xs, np.repeat(path[:, None], setting.nodes, axis=1))
    assert_close(np.array([mark["time_s"] for mark in found.marks]), np.array([0.0, *ends]))
    assert [node.batches for node in found.simulation.machine.nodes] == begun
    assert (min(begun) < setting.steps) == (setting.latency_s < 1)  # else the last is done before the next step
    assert found.marks[-1]["samples"] == setting.steps * needed


def of_tree_s(setting: Setting) -> float:
    """The time of an all-reduce of messages that cost latency alone: a tree has the fewest, one after the other."""
    return 2 * int(np.ceil(np.log2(setting.nodes))) * setting.latency_s


@pytest.mark.parametrize("setting", [Setting(gradient_s=UNEVEN, latency_s=0.3, momentum=0.9), Setting(nodes=1)])
def test_the_first_of_all_workers_are_all_workers(setting: Setting) -> None:
    """Bit for bit, and at the same times."""
    cluster = Cluster(1.0, 1e3, 0.2, jitter=0.3, receive_overhead_s=0.01)
    first, all_of_them = (run(setting, algo, cluster) for algo in (FirstOfAll(), Sync(overlap=False)))
    assert (first.xs == all_of_them.xs).all()
    assert first.marks == all_of_them.marks


def test_a_worker_that_is_always_last_never_counts() -> None:
    """Without noise x goes to the minimum of the others' mean function."""
    setting = Setting(nodes=4, lr=0.6, steps=400, gradient_s=(1.0, 1.0, 1.5, 1.0), data=Quadratic(dim=6, noise=0))
    x = run(setting, Sync(overlap=False, backups=1), mark_samples=1200).xs[-1, 0]
    assert_close(x, setting.minima[[0, 1, 3]].mean(axis=0), 1e-9)
    assert np.abs(x - setting.target).max() > 0.01


def test_a_step_lasts_until_the_first_gradients_are_complete() -> None:
    """With exponential times, of which nobody remembers what has passed, and workers that are late but seldom: the
    mean of the k-th of p, sum over j <= k of 1 / (p - j + 1), from below; the mean of the longest is H_p."""
    p = 40
    cluster = Cluster(1.0, math.inf, 0.0, jitter=1.0, jitter_distribution="gamma")
    times = [timed(Sync(overlap=False, backups=b), cluster, p, 500).time_s / 500 for b in (0, 1, 2)]
    k_th = [sum(1 / (p - j) for j in range(p - b)) for b in (0, 1, 2)]
    assert times[0] == pytest.approx(k_th[0], rel=0.03)
    assert times[1] / times[0] == pytest.approx(k_th[1] / k_th[0], rel=0.06)
    assert k_th[2] < times[2] < times[1]


def test_backups_and_overlap_exclude_each_other() -> None:
    with pytest.raises(ValueError, match=r"^overlap must be false with backups: .*, got true$"):
        Sync(backups=1)
