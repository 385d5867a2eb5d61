"""NoLoCo: DiLoCo in pairs, which wait for one another alone."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from dsgd.algorithms.diloco import DiLoCo
from dsgd.algorithms.noloco import NoLoCo
from dsgd.cluster import Cluster
from dsgd.data import Quadratic
from dsgd.streams import stream
from tests.support import reference
from tests.support.reference import Array, Setting
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


def test_two_workers_from_one_start_are_diloco_with_heavy_ball() -> None:
    s = Setting(nodes=2, steps=20, momentum=0.5)
    expected = run(s, DiLoCo(4, "heavy_ball", 0.6, 0.4)).c[-1]
    for gamma in (0.1, 1.3):
        assert_close(run(s, NoLoCo(4, 0.6, 0.4, gamma)).xs[-1], np.tile(expected, (2, 1)), 1e-11)


def test_the_mean_goes_the_way_of_diloco_where_curvatures_are_equal() -> None:
    """Whatever the pairs and gamma are, at the ends of the rounds."""
    s = Setting(nodes=4, steps=24)
    expected = run(s, DiLoCo(4, "heavy_ball", 0.6, 0.4)).c[::4]
    for gamma, seed in ((0.1, 0), (1.3, 7)):
        assert_close(run(s, NoLoCo(4, 0.6, 0.4, gamma, seed)).mean[::4], expected, 1e-11)


def distances(moments: Array, beta: float, gamma: float) -> Array:
    """The mean over all pairings of four workers of |u|^2, u m, |m|^2 after a round without gradients, from the
    workers' [2, 4] slow parameters u and momenta m, whose means are zero."""
    after = []
    for i, j, k, h in permutations(range(4)):
        W = np.zeros((4, 4))
        W[np.ix_([i, j], [i, j])] = W[np.ix_([k, h], [k, h])] = 0.5
        m = beta * moments[1] + gamma * (W @ moments[0] - moments[0])
        u = moments[0] + m
        after.append([u @ u, u @ m, m @ m])
    return np.mean(after, axis=0)


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_the_limit_of_the_pull(beta: float) -> None:
    """In mean square the workers meet below 2 (1 - beta^2) / (1 - beta / (p - 1)) and not above it."""
    limit = 2 * (1 - beta**2) / (1 - beta / 3)
    rng = np.random.default_rng(1)
    samples = rng.standard_normal((3, 2, 4))
    samples -= samples.mean(axis=2, keepdims=True)
    for share in (0.999, 1.001):
        before = np.array([[u @ u, u @ m, m @ m] for u, m in samples])
        after = np.array([distances(each, beta, share * limit) for each in samples])
        growth = np.abs(np.linalg.eigvals(np.linalg.solve(before, after))).max()
        assert (growth < 1) == (share < 1)


def test_without_gradients_the_workers_meet() -> None:
    s = Setting(nodes=5, steps=60, lr=1e-12, data=Quadratic(dim=5, noise=0), start=SPREAD)
    xs = run(s, NoLoCo(1, beta=0.5, gamma=0.5)).xs
    assert_close(xs[-1], np.tile(SPREAD.mean(axis=0), (5, 1)), 1e-3)


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
