"""Elastic averaging SGD: NumPy loops, in their own time and in lock-step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsgd.algorithms.easgd import EASGD
from tests.support import reference
from tests.support.reference import Setting
from tests.support.simulated import assert_close, run

UNEVEN = (1.0, 1.7131, 0.6217, 2.3549)
RNG = np.random.default_rng(8)
SPREAD = RNG.standard_normal((4, 5))
ELSEWHERE = RNG.standard_normal(5)


@pytest.mark.parametrize(
    ("setting", "algo", "alpha"),
    [
        (Setting(gradient_s=UNEVEN, latency_s=0.1357), EASGD(tau=1), lambda lr: 0.9 / 4),
        (Setting(gradient_s=UNEVEN, latency_s=1.1357), EASGD(tau=1, beta=1.3), lambda lr: 1.3 / 4),
        (Setting(gradient_s=UNEVEN, halve_at=4, steps=25), EASGD(tau=3, rho=2.5), lambda lr: 2.5 * lr),
        (
            Setting(gradient_s=UNEVEN, latency_s=0.2468, momentum=0.8),
            EASGD(tau=2, alpha=0.2, servers=3),
            lambda lr: 0.2,
        ),
        (Setting(momentum=0.8, nesterov=True, weight_decay=0.05), EASGD(tau=2, alpha=0.2), lambda lr: 0.2),
        (
            Setting(gradient_s=UNEVEN, start=SPREAD, centre=ELSEWHERE),
            EASGD(tau=1, alpha=1.0, servers=2),
            lambda lr: 1.0,
        ),
    ],
)
def test_agrees_with_a_numpy_loop(setting: Setting, algo: EASGD, alpha: Callable[[float], float]):
    """Algorithm 1 with the gradient at the value before the pull, every worker by its own clock."""
    path = run(setting, algo)
    xs, c = reference.easgd(setting, algo.tau, alpha)
    assert_close(path.xs[-1], xs)
    assert_close(path.c[-1], c)


@pytest.mark.parametrize(
    ("setting", "tau"),
    [
        (Setting(gradient_s=UNEVEN, steps=25), 1),
        (Setting(gradient_s=UNEVEN, latency_s=0.4321, weight_decay=0.1, halve_at=5), 3),
    ],
)
def test_momentum_variant_agrees_with_a_numpy_loop(setting: Setting, tau: int):
    """Algorithm 2: v = delta v - lr grad(s + delta v), x = x + v, v untouched by the exchange."""
    path = run(setting, EASGD(tau=tau, alpha=0.2, momentum=0.9))
    xs, c = reference.easgd(setting, tau, lambda lr: 0.2, delta=0.9)
    assert_close(path.xs[-1], xs)
    assert_close(path.c[-1], c)


@pytest.mark.parametrize("variant", ["sync", "round_robin"])
@pytest.mark.parametrize(
    ("setting", "options", "alpha"),
    [
        (Setting(gradient_s=UNEVEN, latency_s=0.4321), {"tau": 3, "beta": 1.3}, lambda lr: 1.3 / 4),
        (Setting(gradient_s=UNEVEN, halve_at=4, steps=25), {"tau": 2, "rho": 2.5}, lambda lr: 2.5 * lr),
        (Setting(momentum=0.8, nesterov=True, weight_decay=0.05), {"tau": 2, "alpha": 0.2}, lambda lr: 0.2),
        (Setting(nodes=2, start=SPREAD[:2], centre=ELSEWHERE), {"tau": 1, "alpha": 0.4}, lambda lr: 0.4),
        (Setting(latency_s=2.0, steps=13), {"tau": 3, "alpha": 0.3, "momentum": 0.9}, lambda lr: 0.3),
    ],
)
def test_lock_step_variants_agree_with_a_numpy_loop(
    variant: str, setting: Setting, options: dict[str, Any], alpha: Callable[[float], float]
):
    """All at once or one after the other, by the steps and not by the clock, on whatever cluster."""
    algo = EASGD(variant, **options)
    path = run(setting, algo)
    xs, centres = reference.easgd_in_lockstep(setting, algo.tau, alpha, variant == "round_robin", algo.momentum)
    assert_close(path.xs[-1], xs[-1])
    assert_close(path.c[-1], centres[-1])
