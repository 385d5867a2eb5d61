"""SPARTA: the plain loop."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest

from dsgd.algorithms.sparta import SPARTA
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
