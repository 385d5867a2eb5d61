"""Decoupled DiLoCo: the plain loop, lengths of differences, a quorum, and failures."""

from __future__ import annotations

import numpy as np
import pytest

from dsgd.algorithms.decoupled import Decoupled
from dsgd.cluster import Cluster
from dsgd.data import Quadratic
from tests.support import reference
from tests.support.reference import Setting
from tests.support.simulated import assert_close, run
from tests.support.timing import timed

WIDE = Quadratic(dim=9)
UNEVEN = (1.0, 1.7131, 0.6217, 2.3549)


NEAR = Setting(gradient_s=UNEVEN, steps=30, latency_s=0.1357, data=WIDE, weight_decay=0.05)
FAR = Setting(gradient_s=UNEVEN, steps=30, latency_s=1.1357, data=WIDE, momentum=0.7, halve_at=15)


@pytest.mark.parametrize(
    ("setting", "tau", "fragments", "delay", "quorum"),
    [(NEAR, 6, 2, 1, 1), (FAR, 5, 3, 2, 1), (NEAR, 3, 3, 2, 3), (FAR, 6, 2, 1, 3)],
)
def test_agrees_with_a_numpy_loop(setting: Setting, tau: int, fragments: int, delay: int, quorum: int) -> None:
    path = run(setting, Decoupled(tau, fragments, delay, quorum, olr=0.6, beta=0.5))
    xs, theta = reference.decoupled(setting, tau, fragments, delay, quorum, 0.6, 0.5)
    assert np.abs(theta).max() > 0
    assert_close(path.xs[-1], xs, 1e-10)
    assert_close(path.c[-1], theta, 1e-10)


def test_nobody_waits_and_a_quorum_of_all_merges_nothing_without_the_slowest() -> None:
    """Gradients of 1 s and one node of 100 s, and a fragment takes 3 s on a link."""
    cluster = Cluster(1.0, 8e6, 0.0, message_bytes=12e6, slow_nodes={3: 100.0})
    one, everybody = (timed(Decoupled(8, 4, 2, quorum), cluster, 4, 60) for quorum in (1, 4))
    for simulation in (one, everybody):
        assert simulation.summary()["idle_fraction_max"] < 1e-9
        assert simulation.summary()["worker_steps"][:3] == [80] * 3
    merged, none = (simulation.machine.network.bytes_sent(simulation.time_s)[4] for simulation in (one, everybody))
    assert none == 0 < merged
