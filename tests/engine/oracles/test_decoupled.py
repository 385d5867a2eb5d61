"""Decoupled DiLoCo: the plain loop, lengths of differences, a quorum, and failures."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
import torch

from dsgd.algorithms.decoupled import Decoupled
from dsgd.algorithms.diloco import DiLoCo
from dsgd.algorithms.syncer import Syncer
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


def test_orthogonal_differences_keep_their_length() -> None:
    """Their plain mean would be shorter by sqrt(4); weights are in proportion to steps."""
    syncer = Syncer(torch.zeros(4, dtype=torch.float64), 1, 4, olr=1.0, beta=0.0)
    for rank in range(4):
        syncer.send(-torch.eye(4, dtype=torch.float64)[rank] * 2, 0, rank, 5)
    moved = syncer.fetch(0, 0)
    assert moved is not None
    assert float(moved.norm()) == pytest.approx(2)
    for rank, steps in ((0, 3), (1, 1)):
        syncer.send(syncer.x - torch.eye(4, dtype=torch.float64)[rank] * (rank + 1), 0, rank, steps)
    assert syncer.fetch(0, 0) is None
    for rank in (2, 3):
        syncer.send(syncer.x.clone(), 0, rank, 2)
    before = syncer.x.clone()
    syncer.fetch(0, 3)
    D = before - syncer.x
    assert float(D.norm()) == pytest.approx((3 * 1 + 1 * 2) / 8)
    assert float(D[0] / D[1]) == pytest.approx(3)


def test_nobody_waits_and_a_quorum_of_all_merges_nothing_without_the_slowest() -> None:
    """Gradients of 1 s and one node of 100 s, and a fragment takes 3 s on a link."""
    cluster = Cluster(1.0, 8e6, 0.0, message_bytes=12e6, slow_nodes={3: 100.0})
    one, everybody = (timed(Decoupled(8, 4, 2, quorum), cluster, 4, 60) for quorum in (1, 4))
    for simulation in (one, everybody):
        assert simulation.summary()["idle_fraction_max"] < 1e-9
        assert simulation.summary()["worker_steps"][:3] == [80] * 3
    merged, none = (simulation.machine.network.bytes_sent(simulation.time_s)[4] for simulation in (one, everybody))
    assert none == 0 < merged


def test_learners_that_fail_stop_nobody() -> None:
    """Here goodput is the share of the time in which learners are up; DiLoCo's is far below it."""
    s = Setting(steps=120)
    cluster = Cluster(1.0, inf, 0.01, failures={"every_s": 40.0, "repair_s": 10.0})
    path, diloco = run(s, Decoupled(6, 2, 1, 3, olr=0.5, beta=0.5), cluster), run(s, DiLoCo(6), cluster)
    summary, other = path.simulation.summary(), diloco.simulation.summary()
    assert summary["failures"] > 5
    assert summary["goodput"] > 0.7 > other["goodput"]
    assert path.simulation.time_s < 0.8 * diloco.simulation.time_s
    assert np.abs(path.c[-1] - s.target).max() < 0.5 * np.abs(s.target).max()
