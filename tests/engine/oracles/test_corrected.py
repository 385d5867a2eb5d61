"""D2, gradient tracking, quasi-global momentum, DecentLaM: their papers' forms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dsgd.algorithms.corrected import METHODS, Corrected
from dsgd.topology import Ring, Star, Topology
from tests.support.reference import Array, Setting
from tests.support.simulated import assert_close, run

SPREAD = np.random.default_rng(8).standard_normal((8, 5))
GRAPHS = {7: Ring(), 8: Star()}
EXACT = ("d2", "tracking")


def corrected(
    s: Setting, method: str, graph: Callable[[int, int], Topology] | None = None, **options: float
) -> Corrected:
    topology = (graph or GRAPHS[s.nodes].build)(s.nodes, s.seed)
    return Corrected(topology, method, **options)


def d2(s: Setting, W: Array, beta: float) -> Array:
    """Tang et al. 2018: x(t+1) = W (2 x(t) - x(t-1) - lr (g(t) - g(t-1))), at first W (x - lr g)."""
    half = (W + np.eye(s.nodes)) / 2
    G = s.gradients(0, s.xs())
    path = [s.xs(), half @ (s.xs() - s.lr * G)]
    for k in range(1, s.steps):
        G, last = s.gradients(k, path[-1]), G
        path.append(half @ (2 * path[-1] - path[-2] - s.lr * (G - last)))
    return np.array(path)


def tracking(s: Setting, W: Array, beta: float) -> Array:
    """Pu and Nedic 2021: x' = W (x - lr y), y' = W y + g' - g, at first y = g."""
    G = s.gradients(0, s.xs())
    Y, path = G, [s.xs()]
    for k in range(s.steps):
        path.append(W @ (path[-1] - s.lr * Y))
        G, last = s.gradients(k + 1, path[-1]), G
        Y = W @ Y + G - last
    return np.array(path)


def qg(s: Setting, W: Array, beta: float) -> Array:
    M, path = np.zeros_like(s.xs()), [s.xs()]
    for k in range(s.steps):
        X, rate = path[-1], s.rate(k * s.nodes)
        path.append(W @ (X - rate * (s.gradients(k, X) + beta * M)))
        M = beta * M + (1 - beta) * (X - path[-1]) / rate
    return np.array(path)


def decentlam(s: Setting, W: Array, beta: float) -> Array:
    M, path = np.zeros_like(s.xs()), [s.xs()]
    for k in range(s.steps):
        X, rate = path[-1], s.rate(k * s.nodes)
        M = beta * M + (X - W @ (X - rate * s.gradients(k, X))) / rate
        path.append(X - rate * M)
    return np.array(path)


LOOPS = {"d2": d2, "tracking": tracking, "qg": qg, "decentlam": decentlam}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("nodes", [7, 8])
def test_agrees_with_the_papers_form_as_a_numpy_loop(method: str, nodes: int) -> None:
    """A rate that changes is that of the step; d2 and tracking know one rate only."""
    halve_at = None if method in EXACT else 6
    s = Setting(nodes=nodes, steps=14, weight_decay=0.05, start=SPREAD[:nodes], halve_at=halve_at)
    algo = corrected(s, method, beta=0.8)
    assert_close(run(s, algo).xs, LOOPS[method](s, algo.topology.matrix(), 0.8), 1e-10)
