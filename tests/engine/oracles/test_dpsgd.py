"""D-PSGD: what mixing with neighbours keeps, costs and allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import cos, pi
from typing import Any

import numpy as np
import pytest

from dsgd.algorithms.dpsgd import DPSGD
from dsgd.algorithms.sync import Sync
from dsgd.cluster import Cluster
from dsgd.data import Quadratic
from dsgd.topology import (
    Complete,
    Exponential,
    Hypercube,
    OnePeerExponential,
    Ring,
    Star,
    TopologyConfig,
    Torus,
)
from tests.support import reference
from tests.support.reference import Array, Setting
from tests.support.simulated import Path, assert_close, run

Mixing = Callable[[int], Array]
SPREAD = np.random.default_rng(8).standard_normal((8, 5))
JITTER = Cluster(1.0, 1e4, 0.2, slow_nodes={1: 3.0}, jitter=0.3)


def from_the_left(p: int, *distances: int) -> Array:
    """Every node takes the mean of itself and the nodes so many places before it."""
    return np.mean([np.roll(np.eye(p), k, axis=0) for k in (0, *distances)], axis=0)


def metropolis_star(p: int) -> Array:
    W = np.diag([1 / p] + [1 - 1 / p] * (p - 1))
    W[0, 1:] = W[1:, 0] = 1 / p
    return W


def cube(p: int) -> Array:
    neighbours = [[i ^ j == 0 or (i ^ j).bit_count() == 1 for j in range(p)] for i in range(p)]
    return np.array(neighbours) / p.bit_length()


def torus(rows: int, columns: int) -> Array:
    around = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]
    moved = [np.kron(np.roll(np.eye(rows), i, axis=0), np.roll(np.eye(columns), j, axis=0)) for i, j in around]
    return np.mean(moved, axis=0)


# The graph, its nodes, and its mixing matrix of each step by hand.
GRAPHS: list[tuple[TopologyConfig, int, Mixing]] = [
    (Ring(), 5, lambda k: from_the_left(5, 1, -1)),
    (Ring(), 2, lambda k: np.full((2, 2), 0.5)),
    (Complete(), 4, lambda k: np.full((4, 4), 0.25)),
    (Star(), 4, lambda k: metropolis_star(4)),
    (Torus(), 9, lambda k: torus(3, 3)),
    (Hypercube(), 8, lambda k: cube(8)),
    (Exponential(), 6, lambda k: from_the_left(6, 1, 2, 4)),
    (OnePeerExponential(), 6, lambda k: from_the_left(6, 2 ** (k % 3))),
]


def decentralised(graph: TopologyConfig, s: Setting, gradient: str = "before", cluster: Cluster | None = None) -> Path:
    return run(s, DPSGD(graph.build(s.nodes, s.seed), gradient), cluster)


@pytest.mark.parametrize("gradient", ["before", "after"])
@pytest.mark.parametrize(("graph", "nodes", "mixing"), GRAPHS[5:])
def test_agrees_with_a_numpy_loop(graph: TopologyConfig, nodes: int, mixing: Mixing, gradient: str):
    """X = W X - lr D(G), rows of W by hand: a directed, changing W must take in its sources, not its targets."""
    # latency, so that marks lie between a step and the next mixture
    s = Setting(nodes, momentum=0.7, weight_decay=0.05, latency_s=0.3)
    assert_close(decentralised(graph, s, gradient).xs, reference.dpsgd(s, mixing, gradient))


@pytest.mark.parametrize(("graph", "nodes", "mixing"), GRAPHS[:5])
def test_a_step_before_the_exchange_agrees_with_a_numpy_loop(graph: TopologyConfig, nodes: int, mixing: Mixing):
    """X = W (X - lr D(G)): where communication takes no time, marks see the mixture."""
    s = Setting(nodes, momentum=0.7, weight_decay=0.05)
    assert_close(decentralised(graph, s, "first").xs, reference.dpsgd(s, mixing, "first"))


@pytest.mark.parametrize("momentum", [{}, {"momentum": 0.9, "nesterov": True}])
def test_adapt_then_combine_on_a_complete_graph_is_synchronous_sgd(momentum: dict[str, Any]):
    """The mean of x - lr u_i is x - lr mean(u_i), and momentum is linear in the gradients, local as it is."""
    s = Setting(weight_decay=0.05, **momentum)
    assert_close(decentralised(Complete(), s, "first").xs, run(s, Sync()).xs, 1e-13)


@pytest.mark.parametrize("gradient", ["before", "after", "first"])
def test_optimiser_and_stragglers_agree_with_a_numpy_loop(gradient: str):
    """Momentum stays local, and a slow node, jitter and queues change when a step happens but not what it is."""
    s = Setting(momentum=0.8, nesterov=True, halve_at=4, start=SPREAD[:4])
    path = run(s, DPSGD(OnePeerExponential().build(4, 0), gradient), JITTER)
    assert_close(path.xs[-1], reference.dpsgd(s, lambda k: from_the_left(4, 2 ** (k % 2)), gradient)[-1])


@pytest.mark.parametrize("graph", [Star(), OnePeerExponential()])
def test_mean_moves_by_the_mean_gradient(graph: TopologyConfig):
    """mean' = mean - lr mean_i g_i(x_i), for every doubly stochastic W: with equal curvature, the path of sync."""
    s = Setting(nodes=6, lr=0.2)
    path = decentralised(graph, s)
    for k in range(s.steps):
        moved = s.lr * s.gradients(k, path.xs[k]).mean(axis=0)
        assert_close(path.mean[k + 1], path.mean[k] - moved)
    assert_close(path.mean, run(s, Sync()).xs[:, 0])
    assert np.abs(path.xs[-1] - path.mean[-1]).max() > 0.01


def test_complete_graph_with_the_gradient_at_the_mixture():
    """The mean is synchronous SGD, and workers differ by lr (g_i - g_j), taken at the common mixture."""
    s = Setting(latency_s=0.3)
    path = decentralised(Complete(), s, "after")
    assert_close(path.mean, run(s, Sync()).xs[:, 0])
    for k in range(s.steps):
        g = s.gradients(k, np.tile(path.mean[k], (s.nodes, 1)))
        assert_close(path.xs[k + 1] - path.xs[k + 1, 0], -s.lr * (g - g[0]), 1e-11)


@pytest.mark.parametrize(("gradient", "shrinks"), [("after", True), ("first", False)])
def test_other_orders_are_stable_up_to_the_rate_of_sgd(gradient: str, shrinks: bool):
    """Modes have factors lambda_k (1 - lr h): on a ring of four, whose smallest eigenvalue is -1/3, that of the mean is
    the first to grow, at lr h = 2."""
    start = np.random.default_rng(4).standard_normal((4, 2))
    s = Setting(4, 60, 1.94 if shrinks else 2.06, data=Quadratic(2, 1.0, spread=0, noise=0), start=start)
    xs = decentralised(Ring(), s, gradient).xs
    far = ((xs - s.target) ** 2).sum(axis=(1, 2))
    assert (far[60] < far[30]) == shrinks


@pytest.mark.parametrize(("graph", "nodes", "bound"), [(Ring(), 4, 2 / 3), (Complete(), 4, 1.0)])
def test_published_order_is_stable_up_to_1_plus_the_smallest_eigenvalue(
    graph: TopologyConfig, nodes: int, bound: float
):
    """Modes have factors lambda_k - lr h, so lr h < 1 + lambda_min(W).

    That is 2/3 on an even ring and 1 on a complete graph."""
    start = np.random.default_rng(nodes).standard_normal((nodes, 2))
    for share in (0.97, 1.03):
        s = Setting(nodes, 60, share * bound, data=Quadratic(2, 1.0, spread=0, noise=0), start=start)
        xs = decentralised(graph, s).xs
        spread = ((xs - xs.mean(axis=1, keepdims=True)) ** 2).sum(axis=(1, 2))
        assert (spread[60] < spread[30]) == (share < 1)


def ring_eigenvalues(p: int) -> Array:
    return np.array([(1 + 2 * cos(2 * pi * k / p)) / 3 for k in range(p)])


def test_stationary_spread_and_variance():
    """With noise sigma, in every coordinate: (1/p) sum_i (x_i - mean)^2 = (lr^2 sigma^2 / p) sum over k >= 2 of
    1 / (1 - (lambda_k - lr h)^2), and the mean has the variance of synchronous SGD, lr sigma^2 / (p h (2 - lr h))."""
    s = Setting(8, 350, lr=0.1, data=Quadratic(dim=500, condition=2, spread=0, noise=0.6), seed=0)
    s = replace(s, start=np.tile(s.target, (s.nodes, 1)))
    path = decentralised(Ring(), s)
    sigma2 = s.data.noise**2
    modes = ring_eigenvalues(8)[1:, None] - s.lr * s.h
    consensus = ((path.xs - path.mean[:, None]) ** 2).mean(axis=1)[100:]
    expected = s.lr**2 * sigma2 / s.nodes * (1 / (1 - modes**2)).sum(axis=0)
    assert np.mean(consensus / expected) == pytest.approx(1, abs=0.03)
    variance = sigma2 * s.lr / (s.nodes * s.h * (2 - s.lr * s.h))
    assert np.mean((path.mean - s.target)[100:] ** 2 / variance) == pytest.approx(1, abs=0.05)
    recorded = np.array([mark["consensus_distance"] for mark in path.marks[100:]])
    assert_close(recorded**2, consensus.sum(axis=1), 1e-10)
