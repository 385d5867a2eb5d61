"""Streaming DiLoCo in few bits: the nearest short floats, their sum in full precision, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dsgd.algorithms.streaming import Streaming
from dsgd.cluster import Cluster
from dsgd.compression.codes import code_bytes, decode, encode
from dsgd.data import Quadratic
from tests.support.reference import Array, Setting
from tests.support.simulated import assert_close, run
from tests.support.timing import timed

START = np.tile(np.random.default_rng(8).standard_normal(7), (3, 1))


def nearest(a: Array, values: Array) -> Array:
    return values[np.abs(a[:, None] - values).argmin(axis=1)]


def said(a: Array, bits: int) -> Array:
    """a rounded to the nearest of all numbers of the format, written down one by one."""
    if bits == 16:  # 8 bits of mantissa with the leading one
        mantissa, exponent = np.frexp(a)
        return np.ldexp(np.round(mantissa * 256) / 256, exponent)
    if bits == 8:  # 448 is the largest
        steps = np.concatenate([np.arange(8) / 8 * 2.0**-6, *((1 + np.arange(8) / 8) * 2.0**e for e in range(-6, 9))])
        values = np.unique(steps[steps <= 448]) / 448
    else:
        values = np.array([0, *(2.0**-k for k in range(7))])
    largest = np.abs(a).max()
    return np.sign(a) * nearest(np.abs(a) / largest, values) * largest if largest else a


@pytest.mark.parametrize("bits", [16, 8, 4])
@settings(max_examples=40)
@given(arrays.arrays(np.float64, st.integers(1, 9), elements=st.floats(-100, 100, width=32)))
def test_a_code_says_the_nearest_number(bits: int, a: Array) -> None:
    """Ties may go either way."""
    packed = encode(torch.from_numpy(a), bits)
    assert len(packed) * 8 == code_bytes(len(a), bits, 8)
    found = decode(packed, len(a), bits).numpy()
    largest = np.abs(a).max()
    assert np.abs(found - a) == pytest.approx(np.abs(said(a, bits) - a), abs=1e-12 * largest + 1e-40)


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_agrees_with_a_numpy_loop(bits: int) -> None:
    """3 workers, of 7 numbers in fragments of 4 and 3: pieces of 2 and 1, the last of the first with one number."""
    s, tau, olr, beta = Setting(nodes=3, steps=20, start=START, data=Quadratic(dim=7)), 4, 0.6, 0.7
    X, theta, v = s.xs(), START[0].copy(), np.zeros(7)
    for t in range(s.steps):
        X = X - s.lr * s.gradients(t, X)
        if (t + 1) % 2 == 0:
            begin, end = ((0, 4), (4, 7))[t // 2 % 2]
            D = np.zeros((3, 6))
            D[:, : end - begin] = (theta - X)[:, begin:end]
            length = -(-(end - begin) // 3)
            mean = np.concatenate(
                [
                    said(np.mean([said(D[i, j : j + length], bits) for i in range(3)], axis=0), bits)
                    for j in range(0, 3 * length, length)
                ]
            )[: end - begin]
            v[begin:end] = beta * v[begin:end] + mean
            theta[begin:end] -= olr * (mean + beta * v[begin:end])
            X[:, begin:end] = theta[begin:end]
    path = run(s, Streaming(tau, 2, 0, 0.0, olr, beta, bits))
    assert_close(path.c[-1], theta, 1e-10)
    assert_close(path.xs[-1], X, 1e-10)
    assert all(np.array_equal(node.worker.kept["theta"].numpy(), path.c[-1]) for node in path.simulation.machine.nodes)


@pytest.mark.parametrize("bits", [16, 4])
def test_bytes_and_time_are_a_ring_s_times_the_share_of_bits(bits: int) -> None:
    """But for the largest magnitude that goes with a piece; the last p - 1 messages have one latency together."""
    p, tau, fragments, d, a = 5, 6, 3, 60000, 0.5
    cluster = Cluster(1.0, 8e6, a, message_bytes=1e6, collective="ring")
    simulation = timed(
        Streaming(tau, fragments, 1, bits=bits), cluster, p, 2 * tau, data=Quadratic(dim=d), precision="fp32"
    )
    piece = code_bytes(d // fragments // p, bits, 4) / (4 * d)
    assert piece == pytest.approx(bits / 32 / fragments / p, rel=0.01)
    T = p * a + 2 * (p - 1) * piece
    assert simulation.time_s == pytest.approx(2 * tau + 2 * fragments * max(0, T - 1), rel=1e-9)
    sent = simulation.machine.network.bytes_sent(simulation.time_s)
    assert sent == pytest.approx([2 * fragments * 2 * (p - 1) * piece * 1e6] * p, rel=1e-9)
