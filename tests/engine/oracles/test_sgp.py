"""Stochastic gradient push: a NumPy loop, and a graph in which only the weights help."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from dsgd.algorithms.sgp import SGP
from dsgd.topology import Topology
from tests.support import reference
from tests.support.reference import Array, Setting
from tests.support.simulated import Path, assert_close, run

SPREAD = np.random.default_rng(8).standard_normal((5, 5))
# i -> j, strongly connected: node 4 hears of everybody, node 0 of one
EDGES = [[(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1, 4), (2, 4), (0, 3)], [(0, 2), (2, 1), (1, 4), (4, 3), (3, 0)]]


def received(edges: list[tuple[int, int]]) -> tuple[Mapping[int, float], ...]:
    """Rows that name who is heard, with weights that mean nothing."""
    return tuple(dict.fromkeys(sorted({i, *(a for a, b in edges if b == i)}), 0.1) for i in range(5))


IRREGULAR = Topology("irregular", 5, (received(EDGES[0]),))
VARYING = Topology("varying", 5, tuple(map(received, EDGES)))


def shares(topology: Topology, step: int) -> Array:
    """Column j: node j gives equal parts to itself and to everybody whom it sends to."""
    P = np.eye(topology.nodes)
    for i in range(topology.nodes):
        for j in topology.sources(i, step):
            P[i, j] = 1
    return P / P.sum(axis=0)


def pushed(topology: Topology, s: Setting, overlap: int) -> tuple[Path, Array]:
    """A run, and the weights at its end."""
    path = run(s, SGP(topology, overlap))
    weights = [node.worker.kept["weight"].numpy() for node in path.simulation.machine.nodes]
    assert all((w == w[0]).all() for w in weights)
    return path, np.array([w[0] for w in weights])


@pytest.mark.parametrize(
    ("topology", "overlap"), [(VARYING, 0), (IRREGULAR, 0), (VARYING, 1), (IRREGULAR, 2), (VARYING, 3)]
)
def test_agrees_with_a_numpy_loop(topology: Topology, overlap: int):
    """Gradients at z, steps and momentum at x, and the last round is shorter."""
    s = Setting(5, steps=13, momentum=0.7, weight_decay=0.05, halve_at=6, start=SPREAD)
    path, weights = pushed(topology, s, overlap)
    z, w = reference.sgp(s, lambda k: shares(topology, k), overlap)
    assert_close(path.xs, z, 1e-10)
    assert_close(weights, w[-1], 1e-10)
    assert weights.max() > 1.2 > 0.8 > weights.min()
