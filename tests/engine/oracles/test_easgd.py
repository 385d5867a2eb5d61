"""Elastic averaging SGD: what the spring conserves, where it leads and when it breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dsgd.algorithms.easgd import EASGD
from dsgd.algorithms.sync import Sync
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


def test_all_at_once_with_different_minima_ends_between_them_and_their_mean():
    """c = mean of the minima b_i, without the bias that an order has, and x_i = (h b_i + rho c) / (h + rho)."""
    s = Setting(steps=150, lr=0.6, data=Quadratic(dim=5, condition=2, noise=0))
    path = run(s, EASGD("sync", tau=1, rho=0.5), mark_samples=s.samples)
    c = s.minima.mean(axis=0)
    assert_close(path.c[-1], c, 1e-10)
    assert_close(path.xs[-1], (s.h * s.minima + 0.5 * c) / (s.h + 0.5), 1e-10)


def test_without_spring_workers_are_independent():
    """alpha = 0: the centre stays, and each worker is SGD on its own data; a single one bit for bit."""
    s = Setting(momentum=0.9, gradient_s=UNEVEN, latency_s=0.1)
    path = run(s, EASGD(tau=1, alpha=0.0))
    assert (path.c == 0).all()
    for rank, node in enumerate(path.simulation.machine.nodes):
        x, direction = np.zeros(5), reference.Direction(s)
        for t in range(node.worker.steps):
            x = x - s.lr * direction(s.gradient(rank, t, x))
        assert_close(path.xs[-1, rank], x)
    alone = Setting(nodes=1, momentum=0.9)
    assert (run(alone, EASGD(tau=1, alpha=0.0)).xs == run(alone, Sync()).xs).all()


def test_momentum_variant_without_spring_is_nesterov_sgd():
    """alpha = 0: the look-ahead point x + delta v follows the iterate of SGD with Nesterov momentum, noise included."""
    delta, s = 0.9, Setting(nodes=1, steps=20)
    x = run(s, EASGD(tau=1, alpha=0.0, momentum=delta)).xs[:, 0]
    nesterov = run(replace(s, momentum=delta, nesterov=True), Sync()).xs[:, 0]
    v = np.diff(x, axis=0, prepend=x[:1])
    assert_close(x + delta * v, nesterov)


def round_robin(p: int, alpha: float, lr_h: float) -> Array:
    """One round of p workers in turn, each: e = alpha (x_i - c); c += e; x_i -= e + lr h x_i. [p + 1, p + 1]."""
    product = np.eye(p + 1)
    for i in range(p):
        turn = np.eye(p + 1)
        turn[i, i], turn[i, p] = 1 - alpha - lr_h, alpha
        turn[p, i], turn[p, p] = alpha, 1 - alpha
        product = turn @ product
    return product


def one_coordinate(
    p: int, alpha: float, lr_h: float, steps: int, variant: str = "async", gradient_s: tuple[float, ...] = ()
) -> tuple[Path, Array]:
    """Workers with the same minimum; equal ones exchange in order of rank, whatever the variant, unless all at once.
    Returns the run and its first state (x_1 .. x_p, c) less the minimum."""
    z = np.random.default_rng(p).standard_normal((p + 1, 1))
    s = Setting(p, steps, lr_h, data=Quadratic(dim=1, spread=0, noise=0), gradient_s=gradient_s)
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


@pytest.mark.parametrize(("p", "lr_h"), [(3, 0.6), (8, 0.1)])
def test_all_at_once_is_stable_up_to_a_bound_that_falls_with_p(p: int, lr_h: float):
    """alpha <= (4 - 2 lr h) / (2 p + 2 - p lr h), so beta = p alpha stays below about 2: what is alternating is the
    centre against the workers' mean, and the run follows the linear map of both."""
    bound = (4 - 2 * lr_h) / (2 * p + 2 - p * lr_h)
    for alpha, stable in ((0.99 * bound, True), (1.01 * bound, False)):
        of_mean_and_centre = np.array([[1 - alpha - lr_h, alpha], [p * alpha, 1 - p * alpha]])
        assert (np.abs(np.linalg.eigvals(of_mean_and_centre)).max() < 1) == stable
        path, z = one_coordinate(p, alpha, lr_h, 30, "sync")
        state = last_state(path)
        expected = np.linalg.matrix_power(of_mean_and_centre, 30) @ [z[:p].mean(), z[p]]
        assert_close(np.array([state[:p].mean(), state[p]]), expected, 1e-10)


def test_round_robin_with_different_minima_ends_at_the_fixed_point_of_its_maps():
    """The order of the workers biases the centre: it ends near the mean of the minima, not at it."""
    s = Setting(steps=250, lr=0.4, data=Quadratic(dim=1, noise=0))
    path = run(s, EASGD(tau=1, alpha=0.12), mark_samples=s.samples)
    p, lr_h, alpha = s.nodes, s.lr, 0.12
    product, offset = np.eye(p + 1), np.zeros(p + 1)
    for i in range(p):
        turn = np.eye(p + 1)
        turn[i, i], turn[i, p], turn[p, i], turn[p, p] = 1 - alpha - lr_h, alpha, alpha, 1 - alpha
        product, offset = turn @ product, turn @ offset
        offset[i] += lr_h * s.minima[i, 0]
    fixed = np.linalg.solve(np.eye(p + 1) - product, offset)
    assert_close(np.append(path.xs[-1], path.c[-1]), fixed, 1e-10)
    assert 1e-4 < abs(path.c[-1, 0] - s.target[0]) < 0.1
