"""D-PSGD: a NumPy loop for each graph and each order of gradient and mixing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dsgd.algorithms.dpsgd import DPSGD
from dsgd.cluster import Cluster
from dsgd.topology import Complete, Exponential, Hypercube, OnePeerExponential, Ring, Star, TopologyConfig, Torus
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


@pytest.mark.parametrize("gradient", ["before", "after", "first"])
def test_optimiser_and_stragglers_agree_with_a_numpy_loop(gradient: str):
    """Momentum stays local, and a slow node, jitter and queues change when a step happens but not what it is."""
    s = Setting(momentum=0.8, nesterov=True, halve_at=4, start=SPREAD[:4])
    path = run(s, DPSGD(OnePeerExponential().build(4, 0), gradient), JITTER)
    assert_close(path.xs[-1], reference.dpsgd(s, lambda k: from_the_left(4, 2 ** (k % 2)), gradient)[-1])
