"""CHOCO-SGD: its paper as a NumPy loop that keeps the public copy of everybody, its limit, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from dsgd.algorithms.choco import CHOCO, COMPRESSORS, SENDING
from dsgd.cluster import Cluster
from dsgd.compression.codes import packed_size
from dsgd.data import Quadratic
from dsgd.streams import stream
from dsgd.topology import Ring, Star
from tests.support.reference import Array, Direction, Setting
from tests.support.simulated import Path, assert_close, run
from tests.support.timing import timed

D, SHARE, LEVELS, SEED = 12, 0.25, 3, 5
WIDE = Quadratic(dim=D, spread=2)
SPREAD = np.random.default_rng(8).standard_normal((8, D))
GRAPHS = {4: Ring(), 7: Ring(), 6: Star()}

Compress = Callable[[Array, int], Array]  # all workers' vectors [nodes, d] at a step, as their codes say them


def topk(A: Array, step: int) -> Array:
    least = np.sort(np.abs(A), axis=1)[:, [-3]]
    return np.where(np.abs(A) >= least, A, 0.0)


def randomk(A: Array, step: int) -> Array:
    chosen = stream("places", SEED, step).choice(D, 3, replace=False)
    return np.where(np.isin(np.arange(D), chosen), A, 0.0)


def sign(A: Array, step: int) -> Array:
    return np.where(A >= 0, 1.0, -1.0) * np.abs(A).mean(axis=1, keepdims=True)


def qsgd(s: Setting) -> Compress:
    """Alistarh et al. 2017, divided by 1 + min(d / s^2, sqrt(d) / s)."""
    draws = [stream("algorithm", s.seed, rank) for rank in range(s.nodes)]

    def compress(A: Array, step: int) -> Array:
        norm = np.linalg.norm(A, axis=1, keepdims=True)
        drawn = np.array([rng.random(D) for rng in draws])
        level = np.floor(np.abs(A) * (LEVELS / np.where(norm > 0, norm, 1.0)) + drawn)
        return np.sign(A) * level * norm / LEVELS / (1 + min(D / LEVELS**2, sqrt(D) / LEVELS))

    return compress


def compress_of(s: Setting, compressor: str) -> Compress:
    if compressor == "qsgd":
        return qsgd(s)
    return {"topk": topk, "randomk": randomk, "sign": sign, "none": lambda A, step: A}[compressor]


def loop(s: Setting, W: Array, compress: Compress, gamma: float, order: str) -> tuple[Array, Array]:
    """Returns the path of X, and all public copies at the end."""
    X, H, direction = s.xs(), np.zeros_like(s.xs()), Direction(s)
    path = [X]
    for k in range(s.steps):
        stepped = X - s.rate(k * s.nodes) * direction(s.gradients(k, X))
        H = H + compress(stepped - H, k + 1) if order == "paper" else H + compress(X - H, k)
        X = stepped + gamma * (W @ H - H)
        path.append(X)
    return np.array(path), H


def choco(s: Setting, compressor: str, gamma: float, order: str = "paper") -> CHOCO:
    topology = GRAPHS[s.nodes].build(s.nodes, s.seed)
    return CHOCO(topology, compressor, share=SHARE, levels=LEVELS, gamma=gamma, order=order, seed=SEED)


def kept(path: Path, name: str) -> Array:
    return np.array([node.worker.kept[name].numpy() for node in path.simulation.machine.nodes])


SETTINGS = {
    "paper": Setting(steps=14, nodes=7, data=WIDE, momentum=0.8, nesterov=True, weight_decay=0.05, halve_at=6),
    "code": Setting(steps=14, nodes=6, data=WIDE, momentum=0.5, start=SPREAD[:6]),
}


@pytest.mark.parametrize("order", SENDING)
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_agrees_with_a_numpy_loop(compressor: str, order: str) -> None:
    """And the weighted sum that a worker keeps is that of the copies of all, each at home."""
    s = SETTINGS[order]
    algo = choco(s, compressor, 0.3, order)
    W = algo.topology.matrix()
    path = run(s, algo)
    expected, H = loop(s, W, compress_of(s, compressor), 0.3, order)
    assert_close(path.xs, expected, 1e-10)
    assert_close(kept(path, "hat"), H, 1e-10)
    assert_close(kept(path, "mixed"), W @ kept(path, "hat"), 1e-13)


def test_warnings_name_the_limit_and_that_nothing_is_mixed() -> None:
    ring = CHOCO(Ring().build(8, 0), gamma=1.5)
    assert ring.warning(8, 0.0) == (
        "algo.gamma=1.5 lets the workers drift apart: topology=ring bears less than 1.5, with short codes still less"
    )
    assert "mixes nothing" in str(replace(ring, gamma=0.0).warning(8, 0.0))
    assert CHOCO(Ring().build(1, 0), gamma=5.0).warning(1, 0.0) is None


@pytest.mark.parametrize(
    ("compressor", "order"), [("topk", "paper"), ("randomk", "code"), ("sign", "code"), ("qsgd", "paper")]
)
def test_codes_go_to_the_neighbours_and_overlap_in_the_order_of_the_code(compressor: str, order: str) -> None:
    p, steps, d, N = 5, 4, 20, 1e6
    algo = CHOCO(Ring().build(p, 0), compressor, share=0.1, order=order, code_s=0.5)
    simulation = timed(algo, Cluster(1.0, 8e6, 0.75, message_bytes=N), p, steps)
    n = packed_size(compressor, d, 8, 2, 127) / d * N
    sent = simulation.machine.network.bytes_sent(simulation.time_s)
    assert sent == pytest.approx([steps * 2 * n] * p, rel=1e-9)
    exchange = 0.5 + 0.75 + 2 * n / 1e6
    step = 1 + exchange if order == "paper" else max(1.0, exchange)
    assert simulation.time_s == pytest.approx(steps * step, rel=1e-9)
