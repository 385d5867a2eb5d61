"""Synchronous SGD: exactly SGD with the batch of all workers, or of those that are first."""

from __future__ import annotations

import numpy as np
import pytest

from dsgd.algorithms.sync import Sync
from dsgd.cluster import Cluster
from dsgd.engines.sim.simulation import Simulation
from tests.support import reference
from tests.support.reference import Setting
from tests.support.simulated import assert_close, run, workers

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
    """x = x - lr d(mean_i g_i(x)), all workers alike, at every step; a mark has the rate of its samples."""
    path = run(setting, Sync(overlap))
    assert_close(path.xs, reference.sync(setting))
    assert [mark["lr"] for mark in path.marks] == [setting.rate(mark["samples"]) for mark in path.marks]


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


# Backup workers

NEVER_EQUAL = (1.0, 1.37, 0.61, 2.29, 1.83)


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
