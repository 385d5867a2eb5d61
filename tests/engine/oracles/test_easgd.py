"""Elastic averaging SGD: NumPy loops, and when the spring breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dsgd.algorithms.easgd import EASGD
from dsgd.data import Quadratic
from tests.support import reference
from tests.support.reference import Array, Setting
from tests.support.simulated import Path, assert_close, run

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


LOCKSTEP = pytest.mark.parametrize("variant", ["sync", "round_robin"])


@LOCKSTEP
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


def round_robin(p: int, alpha: float, lr_h: float) -> Array:
    """One round of p workers in turn, each: e = alpha (x_i - c); c += e; x_i -= e + lr h x_i. [p + 1, p + 1]."""
    product = np.eye(p + 1)
    for i in range(p):
        turn = np.eye(p + 1)
        turn[i, i], turn[i, p] = 1 - alpha - lr_h, alpha
        turn[p, i], turn[p, p] = alpha, 1 - alpha
        product = turn @ product
    return product


def one_coordinate(p: int, alpha: float, lr_h: float, steps: int, variant: str = "async") -> tuple[Path, Array]:
    """Workers with the same minimum; equal ones exchange in order of rank, whatever the variant, unless all at once.
    Returns the run and its first state (x_1 .. x_p, c) less the minimum."""
    z = np.random.default_rng(p).standard_normal((p + 1, 1))
    s = Setting(p, steps, lr_h, data=Quadratic(dim=1, spread=0, noise=0))
    s = replace(s, start=z[:p] + s.target, centre=z[p] + s.target)
    return run(s, EASGD(variant, tau=1, alpha=alpha), mark_samples=s.samples), np.append(z[:p], z[p])


def last_state(path: Path) -> Array:
    """(x_1 .. x_p, c) less the minimum at the end of a run with one coordinate."""
    return np.append(path.xs[-1], path.c[-1]) - path.simulation.problem.data.test_set[1][0, 0].numpy()


@pytest.mark.parametrize(("variant", "lr_h", "p"), [("async", 0.3, 3), ("async", 1.5, 8), ("round_robin", 0.3, 16)])
def test_round_robin_is_stable_up_to_the_published_bound(variant: str, lr_h: float, p: int):
    """alpha <= (4 - 2 lr h) / (4 - lr h), whatever p: at 0.99 of it the run follows maps of a spectral radius below
    1, at 1.05 of it above 1.

    Zhang et al. 2015, section 4; exact for odd p, a little too strict for small even p."""
    bound = (4 - 2 * lr_h) / (4 - lr_h)
    for alpha, stable in ((0.99 * bound, True), (1.05 * bound, False)):
        maps = round_robin(p, alpha, lr_h)
        assert (np.abs(np.linalg.eigvals(maps)).max() < 1) == stable
        path, z = one_coordinate(p, alpha, lr_h, steps=8, variant=variant)
        assert_close(last_state(path), np.linalg.matrix_power(maps, 8) @ z, 1e-11)
