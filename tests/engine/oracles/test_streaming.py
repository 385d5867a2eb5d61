"""Streaming DiLoCo: the plain loop, and its time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.algorithms.streaming import Streaming
from dsgd.cluster import Cluster
from tests.support import reference
from tests.support.reference import Setting
from tests.support.simulated import assert_close, run
from tests.support.timing import timed

SPREAD = np.random.default_rng(8).standard_normal((4, 5))
START = np.tile(SPREAD[0], (4, 1))


@pytest.mark.parametrize(
    ("tau", "fragments", "delay", "mix"),
    [(6, 2, 0, 0.0), (6, 2, 1, 0.5), (12, 3, 3, 0.8), (4, 4, 0, 1.0), (8, 3, 1, 0.3)],
)
def test_agrees_with_a_numpy_loop(tau: int, fragments: int, delay: int, mix: float) -> None:
    setting = Setting(4, 24, momentum=0.8, nesterov=True, weight_decay=0.05, halve_at=10, start=START)
    path = run(setting, Streaming(tau, fragments, delay, mix, olr=0.6, beta=0.7))
    xs, centres = reference.streaming(setting, tau, fragments, delay, mix, 0.6, 0.7)
    assert_close(path.xs, xs)
    assert_close(path.c, centres)


def test_an_outer_rate_above_the_limit_is_a_warning() -> None:
    assert Streaming().warning(4, 0.0) is None
    assert Streaming(olr=1.4).warning(4, 0.0) == (
        "algo.olr=1.4 is too much where rounds are long: with algo.beta=0.9 at most 1.35714 is stable"
    )


@settings(max_examples=15)
@given(st.integers(2, 12), st.integers(1, 4), st.integers(1, 5), st.integers(0, 4), st.floats(1e-3, 10.0), st.data())
def test_a_fragment_that_takes_longer_than_its_delay_is_waited_for(
    p: int, fragments: int, cycle: int, delay: int, transfer_s: float, data: st.DataObject
) -> None:
    """t + max(0, T - delay t) / cycle for a step, T of the all-reduce of a fragment."""
    t, a, delay = 1.0, data.draw(st.floats(0, 0.1)), min(delay, cycle - 1)
    cluster = Cluster(t, 8e6 / transfer_s, a, message_bytes=1e6, collective="ring")
    simulation = timed(Streaming(cycle * fragments, fragments, delay), cluster, p, steps=6 * cycle)
    T = 2 * (p - 1) * (a + transfer_s / fragments / p)
    assert simulation.time_s == pytest.approx(6 * (cycle * t + max(0.0, T - delay * t)), rel=1e-9)
    sent = simulation.machine.network.bytes_sent(simulation.time_s)
    assert sent == pytest.approx([6 * 2 * (p - 1) / p * 1e6 / fragments] * p, rel=1e-9)
