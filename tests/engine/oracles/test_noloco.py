"""NoLoCo: DiLoCo in pairs, which wait for one another alone."""

from __future__ import annotations

import numpy as np
import pytest

from dsgd.algorithms.noloco import NoLoCo
from dsgd.cluster import Cluster
from dsgd.streams import stream
from tests.support import reference
from tests.support.reference import Setting
from tests.support.simulated import assert_close, run
from tests.support.timing import step_times

SPREAD = np.random.default_rng(8).standard_normal((5, 5))


def drawn(seed: int, nodes: int, turn: int) -> list[int]:
    return stream("pairs", seed, turn).permutation(nodes).tolist()


@pytest.mark.parametrize(
    ("setting", "tau"),
    [
        (Setting(steps=13, start=SPREAD[:4]), 1),
        (Setting(steps=13, nodes=5, start=SPREAD, weight_decay=0.05), 3),
        (Setting(steps=12, nodes=2, momentum=0.8, nesterov=True, halve_at=6), 3),
    ],
)
def test_agrees_with_a_numpy_loop(setting: Setting, tau: int) -> None:
    path = run(setting, NoLoCo(tau, olr=0.6, beta=0.4, gamma=0.9, seed=5))
    assert_close(path.xs, reference.noloco(setting, tau, 0.6, 0.4, 0.9, lambda turn: drawn(5, setting.nodes, turn)))


def test_a_slow_worker_holds_up_its_partners_alone() -> None:
    """A round of 2 steps of 1 s, or 10 s on worker 0; messages take 0.5 s."""
    algo, rounds = NoLoCo(2, seed=1), 6
    times = step_times(algo, Cluster(1.0, 8e6 / 0.25, 0.25, slow_nodes={0: 5.0}, message_bytes=1e6), 4, 2 * rounds + 1)
    ready = [0.0] * 4
    for turn in range(rounds):
        ready = [now + (10.0 if rank == 0 else 2.0) for rank, now in enumerate(ready)]
        order = drawn(1, 4, turn)
        for i, j in (order[:2], order[2:]):
            ready[i], ready[j] = max(ready[i], ready[j] + 0.5), max(ready[j], ready[i] + 0.5)
    assert [each[2 * rounds] for each in times] == pytest.approx([ready[0] + 5, *(now + 1 for now in ready[1:])])


def test_a_pull_that_lets_workers_drift_is_a_warning() -> None:
    assert NoLoCo().warning(4, 0.0) is None
    assert NoLoCo(beta=0.9, gamma=0.7).warning(4, 0.0) == (
        "algo.gamma=0.7 lets the workers drift apart: with algo.beta=0.9 and nodes=4 it must be > 0 and < 0.5429"
    )
    assert NoLoCo(beta=0.5, gamma=2.0).warning(2, 0.0) is None  # two bear up to 3
    assert NoLoCo(beta=0.5, gamma=2.0).warning(8, 0.0) is not None
    assert NoLoCo(gamma=0.0).warning(1, 0.0) is None
    assert NoLoCo(gamma=0.0).warning(4, 0.0) is not None
