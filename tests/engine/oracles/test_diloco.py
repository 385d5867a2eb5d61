"""DiLoCo, SlowMo, BMUF: known optimisers at the ends of their options, and their limits of stability."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dsgd.algorithms.diloco import OUTER, DiLoCo
from dsgd.algorithms.localsgd import LocalSGD
from dsgd.algorithms.sync import Sync
from dsgd.data import Quadratic
from tests.support import reference
from tests.support.reference import Array, Setting
from tests.support.simulated import assert_close, run

SPREAD = np.random.default_rng(8).standard_normal((4, 5))
START = np.tile(SPREAD[0], (4, 1))


PLAIN = Setting(steps=13, start=START)
DECAYING = Setting(steps=12, momentum=0.8, nesterov=True, weight_decay=0.05, halve_at=6)


@pytest.mark.parametrize(
    ("outer", "tau", "setting"),
    [
        ("nesterov", 3, PLAIN),
        ("nesterov", 5, DECAYING),
        ("heavy_ball", 1, PLAIN),
        ("heavy_ball", 3, DECAYING),
        ("slowmo", 50, PLAIN),
        ("slowmo", 3, DECAYING),
    ],
)
def test_agrees_with_a_numpy_loop(setting: Setting, tau: int, outer: str) -> None:
    path = run(setting, DiLoCo(tau, outer, olr=0.6, beta=0.7))
    xs, centres = reference.diloco(setting, tau, outer, 0.6, 0.7)
    assert_close(path.xs, xs)
    assert_close(path.c, centres[:, 0])


@pytest.mark.parametrize("outer", OUTER)
def test_outer_steps_of_rate_one_without_momentum_are_local_sgd(outer: str) -> None:
    s = Setting(steps=24, momentum=0.9, nesterov=True, weight_decay=0.05)
    local, path = run(s, LocalSGD(5)), run(s, DiLoCo(5, outer, olr=1.0, beta=0.0))
    assert_close(path.xs[:-1], local.xs[:-1], 1e-10)  # it averages after the last step, too
    assert_close(path.c[-1], local.mean[-1], 1e-10)


@pytest.mark.parametrize(("outer", "olr"), [("nesterov", 0.5), ("heavy_ball", 0.5), ("slowmo", 1.0)])
def test_rounds_of_one_step_are_all_reduce_sgd_with_the_outer_momentum(outer: str, olr: float) -> None:
    s = Setting(steps=30, lr=0.08, weight_decay=0.05)
    momentum = Setting(steps=30, lr=0.08 * olr, weight_decay=0.05, momentum=0.6, nesterov=outer == "nesterov")
    assert_close(run(s, DiLoCo(1, outer, olr, 0.6)).xs, run(momentum, Sync()).xs, 1e-10)


def theta(s: Setting, algo: DiLoCo) -> Array:
    """Return the output model at the end."""
    return run(s, algo, mark_samples=s.samples).c[-1]


def test_slowmo_is_heavy_ball_where_the_rate_stays_and_not_where_it_changes() -> None:
    s = Setting(steps=24)
    assert_close(theta(s, DiLoCo(4, "slowmo", 1.0, 0.6)), theta(s, DiLoCo(4, "heavy_ball", 1.0, 0.6)), 1e-10)
    s = Setting(steps=24, halve_at=10)
    other = theta(s, DiLoCo(4, "heavy_ball", 1.0, 0.6))
    assert np.abs(theta(s, DiLoCo(4, "slowmo", 1.0, 0.6)) - other).max() > 1e-4


def test_the_rate_after_the_last_step_counts_for_no_round() -> None:
    """That of a cosine is 0 there."""
    algo = DiLoCo(4, "slowmo", 1.0, 0.6, "delayed")
    assert_close(theta(Setting(steps=24, halve_at=24), algo), theta(Setting(steps=24), algo), 0)


@pytest.mark.parametrize("outer", ["nesterov", "heavy_ball"])
def test_is_stable_up_to_its_limit(outer: str) -> None:
    """Of olr a = 2 (1 + beta) / (1 + 2 beta), 2 (1 + beta), with a = 1 - (1 - lr h)^tau."""
    s, beta = Setting(2, steps=600, lr=0.3, data=Quadratic(1, 1.0, spread=0, noise=0), start=START[:2, :1]), 0.9
    a = 1 - (1 - s.lr) ** 4
    limit = DiLoCo(4, outer, olr=1.0, beta=beta).limit(s.nodes)
    for share in (0.98, 1.02):
        path = run(s, DiLoCo(4, outer, share * limit / a, beta), mark_samples=8)
        errors = np.abs(path.c - s.target).max(axis=1)
        late, later = errors[len(errors) // 3 : len(errors) // 2].max(), errors[len(errors) // 2 :].max()
        assert (later < late) == (share < 1)


def test_long_rounds_shrink_an_error_by_the_root_of_0_27() -> None:
    """With DiLoCo's 0.7 and 0.9: the eigenvalues of a round have the product 0.9 (1 - 0.7) = 0.27."""
    s = Setting(1, steps=1000, lr=0.9, data=Quadratic(dim=1, condition=1.0, spread=0, noise=0), start=START[:1, :1])
    errors = np.abs(run(s, DiLoCo(25), mark_samples=25).c - s.target)[:, 0]
    rate = (errors[24:].max() / errors[4:20].max()) ** (1 / 20)
    assert rate == pytest.approx(math.sqrt(0.27), rel=0.05)


def test_the_stationary_variance_of_the_output_with_heavy_ball() -> None:
    """olr q (1 + beta) / (a (1 - beta) (2 (1 + beta) - olr a)), q the variance that a round adds to the mean."""
    tau, olr, beta, data = 4, 0.7, 0.6, Quadratic(dim=2000, condition=2, spread=0, noise=0.7)
    s = Setting(nodes=4, lr=0.2, steps=800, data=data, seed=0)
    s = replace(s, start=np.tile(s.target, (4, 1)))
    errors = run(s, DiLoCo(tau, "heavy_ball", olr, beta), mark_samples=4 * tau).c[50:] - s.target
    r = 1 - s.lr * s.h
    a, q = 1 - r**tau, (s.lr * data.noise) ** 2 * (1 - r ** (2 * tau)) / (1 - r**2) / s.nodes
    expected = olr * q * (1 + beta) / (a * (1 - beta) * (2 * (1 + beta) - olr * a))
    assert np.mean(errors**2 / expected) == pytest.approx(1, abs=0.05)


def test_an_outer_rate_above_the_limit_is_a_warning() -> None:
    assert DiLoCo().warning(4, 0.0) is None
    assert DiLoCo(olr=1.3).warning(4, 0.0) is None
    assert DiLoCo(olr=1.4).warning(4, 0.0) == (
        "algo.olr=1.4 is too much where rounds are long: with algo.beta=0.9 at most 1.35714 is stable"
    )
    assert DiLoCo(outer="slowmo", olr=3.7).warning(4, 0.0) is None
    assert DiLoCo(olr=0.7, overlap="eager").warning(2, 0.0) is None
    assert DiLoCo(olr=0.7, overlap="eager").warning(4, 0.0) == (
        "algo.olr=0.7 is too much where rounds are long: "
        "with algo.beta=0.9 and algo.overlap=eager at most 0.415974 is stable"
    )
