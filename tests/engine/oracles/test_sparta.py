"""SPARTA: the plain loop, its two ends, and how fast a share of the parameters keeps the workers together."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest

from dsgd.algorithms.diloco import DiLoCo
from dsgd.algorithms.sparta import SPARTA
from dsgd.algorithms.sync import Sync
from dsgd.data import Quadratic
from tests.support import reference
from tests.support.reference import Array, Setting
from tests.support.simulated import assert_close, run

SEED = 5


def places(count: int, step: int) -> Array:
    return np.random.default_rng([crc32(b"places"), SEED, step]).choice(5, count, replace=False)


@pytest.mark.parametrize(("share", "count", "tau"), [(0.005, 1, 4), (0.4, 2, 0), (0.4, 2, 4), (1.0, 5, 0)])
def test_agrees_with_a_numpy_loop(share: float, count: int, tau: int) -> None:
    setting = Setting(steps=13, momentum=0.8, weight_decay=0.05, halve_at=6)
    path = run(setting, SPARTA(share, tau, olr=0.6, beta=0.7, seed=SEED))
    xs, centres = reference.sparta(setting, lambda step: places(count, step), tau, 0.6, 0.7)
    assert_close(path.xs, xs)
    if tau:
        assert_close(path.c, centres)


def test_a_share_of_all_is_all_reduce_sgd_and_rounds_of_one_step_are_diloco() -> None:
    s = Setting(steps=20, weight_decay=0.05)
    assert_close(run(s, SPARTA(share=1.0)).xs, run(s, Sync()).xs)
    assert_close(run(s, SPARTA(tau=1)).xs, run(s, DiLoCo(tau=1)).xs)


def test_an_average_takes_its_share_of_the_squared_distance_from_the_mean() -> None:
    """Without gradients and noise, 100 steps of a share of 0.01 leave 0.99^100 of it."""
    data = Quadratic(dim=10_000, condition=1, spread=0, noise=0)
    start = np.random.default_rng(1).standard_normal((4, 10_000))
    xs = run(Setting(steps=100, lr=0.0, data=data, start=start), SPARTA(share=0.01, seed=SEED), mark_samples=400).xs
    before, after = (np.square(X - X.mean(axis=0)).sum() for X in (xs[0], xs[-1]))
    assert after / before == pytest.approx(0.99**100, rel=0.05)
    assert_close(xs[-1].mean(axis=0), xs[0].mean(axis=0), 1e-10)
