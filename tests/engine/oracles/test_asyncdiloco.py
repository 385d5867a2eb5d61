"""Asynchronous DiLoCo, HALoS and HeLoCo: plain loops in virtual time, and what HeLoCo makes of a difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dsgd.algorithms.asyncdiloco import AsyncDiLoCo, HeLoCo
from dsgd.data.quadratic import Quadratic
from tests.support import reference
from tests.support.cases import prepared
from tests.support.reference import Array, Setting
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


OPTIONS: dict[str, Any] = {"c_ok": 0.6, "k_s": 1.7, "beta_max": 0.8, "k_d": 0.9, "kappa": 0.7}


@pytest.mark.parametrize("setting", SETTINGS)
def test_heloco_agrees_with_a_numpy_loop(setting: Setting) -> None:
    """With differences of all three kinds, and late ones."""
    kinds, delays = set[int](), set[int]()

    def changed(D: Array, m: Array, late: int) -> Array:
        delays.add(late)
        if m.any():
            cosine = D @ m / np.linalg.norm(D) / np.linalg.norm(m)
            kinds.add(1 if cosine >= 0.6 else 0 if cosine >= 0 else -1)
            D = reference.towards(D, 0.4 * m, **OPTIONS)
        return D / (1 + late) ** 0.5

    setting = replace(setting, data=Quadratic(dim=5, spread=2.0, noise=0.5))
    path = run(setting, AsyncDiLoCo(3, olr=0.4, beta=0.6, buffer=1, delay_power=0.5, **OPTIONS))
    xs, c = reference.asyncdiloco(setting, [3] * 4, (0.4, 0.6, 1), changed=changed)
    assert (kinds, len(delays) > 2) == ({-1, 0, 1}, True)
    assert_close(path.xs[-1], xs)
    assert_close(path.c[-1], c)


def same_run(s: Setting, **options: Any) -> bool:
    """Whether a run is the same to the bit without HeLoCo."""
    algo = AsyncDiLoCo(3, olr=0.3, beta=0.3, buffer=1)
    return np.array_equal(run(s, replace(algo, **options)).c, run(s, algo).c)


def test_heloco_turns_nothing_from_a_cosine_of_minus_one_or_for_one_worker() -> None:
    """The differences of one worker without noise and with one curvature have the direction of their momentum."""
    apart = Setting(gradient_s=UNEVEN, steps=20)
    assert same_run(apart, **OPTIONS | {"c_ok": -1.0})
    assert not same_run(apart, **OPTIONS)
    alone = Setting(nodes=1, steps=20, data=Quadratic(dim=5, condition=1.0, noise=0.0))
    assert same_run(alone, **OPTIONS | {"c_ok": 0.999})


def heloco(layout: list[tuple[int, ...]], m: Array, **options: Any) -> HeLoCo:
    algo = replace(AsyncDiLoCo(olr=1.0, beta=0.0, buffer=1, c_ok=1.0), **options)
    server = algo.server(torch.zeros(m.size, dtype=torch.float64))
    assert isinstance(server, HeLoCo)
    server.layout = layout
    server.m.copy_(torch.from_numpy(m))
    return server


def applied(server: HeLoCo, D: Array) -> Array:
    """What is left of a difference, with outer steps of rate 1 and without momentum."""
    return -server.update(torch.from_numpy(D)).numpy()


def test_heloco_removes_exactly_the_part_against_the_momentum() -> None:
    """With beta_max = conf = 1 and k_s (-cos) >= 1."""
    m, D = np.array([3.0, 4.0]), np.array([-2.0, 1.0])
    left = applied(heloco([(2,)], m, k_s=100.0, beta_max=1.0, kappa=0.0), D)
    assert left @ m == pytest.approx(0, abs=1e-15)
    assert_close(left, D - (D @ m) * m / 25)
    assert_close(applied(heloco([(2,)], m, k_s=100.0, beta_max=0.25, kappa=0.0), D), D - 0.25 * (D @ m) * m / 25)


def test_heloco_turns_and_keeps_the_length() -> None:
    m, D = np.array([0.0, 2.0]), np.array([3.0, 0.0])  # a right angle
    conf = 3 / (3 + 0.5 * 2)
    w = np.array([1 - 0.4 * conf, 0.4 * conf])
    assert_close(applied(heloco([(2,)], m, k_d=0.4, kappa=0.5), D), 3 * w / np.linalg.norm(w))
    assert_close(applied(heloco([(2,)], m, k_d=100.0), D), np.array([0.0, 3.0]))
    assert_close(applied(heloco([(2,)], m, k_d=0.0), D), D)


def test_heloco_turns_each_tensor_of_the_model_by_itself() -> None:
    """A matrix as a whole. A block that has not moved stays so, and so does one without momentum."""
    layout = [(2,), (2, 2), (1,), (2,)]
    m = np.array([3.0, 4.0, 1.0, 0.0, 0.0, 1.0, 5.0, 0.0, 0.0])
    D = np.array([3.1, 3.9, -1.0, 2.0, 3.0, -1.0, 0.0, 7.0, 8.0])
    server = heloco(layout, m, c_ok=0.9, k_s=100.0, beta_max=1.0, kappa=0.0)
    left = applied(server, D)
    assert np.array_equal(left[[0, 1, 6, 7, 8]], D[[0, 1, 6, 7, 8]])
    assert_close(left[2:6], D[2:6] + 2 / 2 * m[2:6])


def test_a_late_difference_counts_less() -> None:
    """Also without turning, not even one whose cosine rounding makes less than -1."""
    D = np.array([-0.8, -11 / 7, -0.3])
    server = heloco([(3,)], -D, c_ok=-1.0, delay_power=2.0)
    server.staleness = 3
    assert np.array_equal(applied(server, D), D / 4**2)


def test_the_server_knows_the_layers() -> None:
    from dsgd.engines.sim.simulation import Simulation

    simulation = Simulation(prepared("algo=asyncdiloco", "algo.c_ok=0.5", "model.hidden=[4]", "nodes=2"))
    (shard,) = simulation.machine.shards
    assert shard.server.layout == simulation.problem.layout
    assert len(shard.server.layout) == 4


def test_heloco_needs_one_server() -> None:
    for algo in (AsyncDiLoCo(c_ok=0.5), AsyncDiLoCo(delay_power=0.5)):
        with pytest.raises(ValueError, match=r"group must be 1 with algo.c_ok > -1 or algo.delay_power > 0, got 2"):
            replace(algo, group=2)
