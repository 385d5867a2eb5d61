"""Asynchronous DiLoCo and HALoS: plain loops in virtual time, and failures."""

from __future__ import annotations

import numpy as np
import pytest

from dsgd.algorithms.asyncdiloco import AsyncDiLoCo
from tests.support import reference
from tests.support.reference import Setting
from tests.support.simulated import assert_close, run

UNEVEN = (1.0, 1.7131, 0.6217, 2.3549)
SETTINGS = [
    Setting(gradient_s=UNEVEN, steps=40),
    Setting(gradient_s=UNEVEN, steps=40, latency_s=0.1357, momentum=0.7, weight_decay=0.05),
    Setting(gradient_s=UNEVEN, steps=40, latency_s=1.1357, momentum=0.7, nesterov=True, halve_at=15),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_agrees_with_a_numpy_loop(setting: Setting) -> None:
    algo = AsyncDiLoCo(3, olr=0.4, beta=0.6, buffer=3)
    path = run(setting, algo)
    xs, c = reference.asyncdiloco(setting, [3] * 4, (0.4, 0.6, 3))
    assert_close(path.xs[-1], xs)
    assert_close(path.c[-1], c)


@pytest.mark.parametrize("setting", SETTINGS[1:])
def test_halos_agrees_with_a_numpy_loop(setting: Setting) -> None:
    """Two regions of two workers; a local server sends on after three updates, while it gets others."""
    rules = {"local_olr": 0.5, "local_beta": 0.6, "local_buffer": 2, "updates": 3, "mix": 0.3}
    path = run(setting, AsyncDiLoCo(2, olr=0.4, beta=0.6, buffer=2, group=2, **rules))
    xs, c = reference.asyncdiloco(setting, [2] * 4, (0.4, 0.6, 2), 2, (0.5, 0.6, 2), 3, 0.3)
    assert np.abs(c).max() > 0
    assert_close(path.xs[-1], xs)
    assert_close(path.c[-1], c)


def test_local_steps_are_in_proportion_to_speed() -> None:
    """Of 8, with the first the fastest by 1.1: 8, 7 and 1 for one that would make less than one."""
    s = Setting(nodes=3, gradient_s=(1.0, 1.1, 20.0), steps=40, latency_s=0.01)
    algo = AsyncDiLoCo(8, slow_nodes={0: 1.0, 1: 1.1, 2: 20.0}, olr=0.4, beta=0.6)
    assert_close(run(s, algo).c[-1], reference.asyncdiloco(s, [8, 7, 1], (0.4, 0.6, 2))[1])
