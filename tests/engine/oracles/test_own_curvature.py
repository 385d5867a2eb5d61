"""Quadratics of different curvature: where each algorithm ends, with exact gradients and a constant rate.

The minimum of the mean is sum_i h_i c_i / sum_i h_i = c. What averages after a step of everybody ends there; several
steps, or mixing with some, weight the workers otherwise. Where all have one curvature the mean shows nothing of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dsgd.algorithms.corrected import Corrected
from dsgd.algorithms.diloco import OUTER, DiLoCo
from dsgd.algorithms.dpsgd import DPSGD
from dsgd.algorithms.localsgd import LocalSGD
from dsgd.algorithms.sync import Sync
from dsgd.data import Quadratic
from dsgd.topology import Ring
from dsgd.worker import Algorithm
from tests.support.reference import Array, Setting
from tests.support.simulated import Path, assert_close, run

OWN = Quadratic(dim=4, condition=2, noise=0, curvature_spread=0.5)
RING = (np.eye(6) + np.roll(np.eye(6), 1, axis=0) + np.roll(np.eye(6), -1, axis=0)) / 3


def ended(s: Setting, algo: Algorithm) -> Path:
    """The end of a run, whose marks on the way would take most of the time."""
    return run(s, algo, mark_samples=s.samples)


def of_mixing(s: Setting, rate: float, gradient: str) -> Array:
    """The workers' vectors x = W x - r h (x - c), W (x - r h (x - c)), W x - r h (W x - c), one for each order."""
    xs = np.empty((6, 4))
    for j in range(4):
        step = rate * np.diag(s.hs[:, j])
        pulled = {"before": step, "first": RING @ step, "after": step @ RING}[gradient]
        towards = RING @ step if gradient == "first" else step
        xs[:, j] = np.linalg.solve(np.eye(6) - RING + pulled, towards @ s.minima[:, j])
    return xs


def of_rounds(s: Setting, tau: int) -> Array:
    """sum_i a_i c_i / sum_i a_i in every coordinate, a_i = 1 - (1 - lr h_i)^tau: what a round removes of an error."""
    a = 1 - (1 - s.lr * s.hs) ** tau
    return (a * s.minima).sum(axis=0) / a.sum(axis=0)


def test_synchronous_sgd_goes_the_way_of_the_mean_objective() -> None:
    """x_k - c = (1 - lr h)^k (x_0 - c): as if all had the mean curvature."""
    s = Setting(6, steps=150, lr=0.6, data=OWN)
    path = run(replace(s, steps=20), Sync()).xs[:, 0]
    assert_close(path - s.target, -s.target * (1 - s.lr * s.h) ** np.arange(21)[:, None], 1e-10)
    assert_close(ended(s, Sync()).xs[-1, 0], s.target, 1e-10)


@pytest.mark.parametrize("tau", [1, 8])
def test_local_sgd_ends_where_workers_count_by_what_their_round_removes(tau: int) -> None:
    """The more steps, the more alike they count: towards the plain mean of the minima, away from the minimum."""
    s = Setting(6, steps=200, lr=0.6, data=OWN)
    end = ended(s, LocalSGD(tau)).mean[-1]
    assert_close(end, of_rounds(s, tau), 1e-10)
    assert (np.abs(end - s.target).max() > 0.02) == (tau > 1)


@pytest.mark.parametrize("outer", OUTER[1:])
def test_outer_momentum_does_not_move_what_local_sgd_ends_at(outer: str) -> None:
    s = Setting(6, steps=400, lr=0.3, data=OWN)
    assert_close(ended(s, DiLoCo(4, outer, 0.5, 0.6)).c[-1], of_rounds(s, 4), 1e-10)


@pytest.mark.parametrize(("gradient", "nesterov"), [("before", False), ("after", False), ("first", True)])
def test_local_momentum_moves_what_dpsgd_ends_at_as_a_higher_rate_would(gradient: str, nesterov: bool) -> None:
    """Constant gradients make steps of lr / (1 - momentum). The workers' mean is off the minimum, ever further."""
    s = Setting(6, steps=300, lr=0.2, data=OWN)
    end = ended(replace(s, momentum=0.8, nesterov=nesterov), DPSGD(Ring().build(6, 0), gradient)).xs[-1]
    assert_close(end, of_mixing(s, s.lr / (1 - 0.8), gradient), 1e-9)
    off = [np.abs(xs.mean(axis=0) - s.target).max() for xs in (of_mixing(s, s.lr, gradient), end)]
    assert off[1] > 2 * off[0] > 0.01


@pytest.mark.parametrize("method", ["d2", "tracking"])
def test_corrected_for_differing_data_every_worker_ends_at_the_minimum(method: str) -> None:
    s = Setting(6, steps=450, lr=0.2, momentum=0.8, data=OWN)
    end = ended(s, Corrected(Ring().build(6, 0), method)).xs[-1]
    assert_close(end, np.tile(s.target, (6, 1)), 1e-9)


@pytest.mark.parametrize("method", ["qg", "decentlam"])
def test_momentum_of_the_whole_network_moves_nothing(method: str) -> None:
    """The end is that of D-PSGD with the step before the exchange, and without momentum."""
    s = Setting(6, steps=300, lr=0.2, data=OWN)
    end = ended(s, Corrected(Ring().build(6, 0), method, beta=0.5)).xs[-1]
    assert_close(end, of_mixing(s, s.lr, "first"), 1e-9)
