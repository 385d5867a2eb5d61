"""Local SGD: NumPy loops, of groups as well, and what it sends and when."""

from __future__ import annotations

import numpy as np
import pytest

from dsgd.algorithms.localsgd import MOMENTUM, LocalSGD
from dsgd.cluster import Cluster
from tests.support import reference
from tests.support.reference import Setting
from tests.support.simulated import assert_close, run

SPREAD = np.random.default_rng(8).standard_normal((4, 5))


HEAVY = Setting(steps=13, momentum=0.8, weight_decay=0.05, start=SPREAD)
NESTEROV = Setting(steps=13, momentum=0.8, nesterov=True, halve_at=6)


@pytest.mark.parametrize("momentum", MOMENTUM)
@pytest.mark.parametrize(("setting", "tau", "switch"), [(HEAVY, 3, 0), (NESTEROV, 4, 5)])
def test_agrees_with_a_numpy_loop(setting: Setting, tau: int, switch: int, momentum: str) -> None:
    found = run(setting, LocalSGD(tau, switch, momentum)).xs
    assert_close(found, reference.localsgd(setting, tau, switch, momentum))


@pytest.mark.parametrize(
    ("setting", "tau", "switch", "group", "inner_tau", "momentum"),
    [
        (Setting(6, 13, momentum=0.8, weight_decay=0.05), 4, 0, 2, 2, "keep"),
        (Setting(6, 13, momentum=0.8), 6, 3, 3, 2, "zero"),
        (Setting(12, 13, momentum=0.8, halve_at=6), 3, 0, 2, 1, "average"),
    ],
)
def test_groups_agree_with_a_numpy_loop(
    setting: Setting, tau: int, switch: int, group: int, inner_tau: int, momentum: str
) -> None:
    found = run(setting, LocalSGD(tau, switch, momentum, group, inner_tau)).xs
    assert_close(found, reference.localsgd(setting, tau, switch, momentum, group, inner_tau), 1e-10)


def test_groups_that_are_islands_send_nothing_between_them_but_in_the_averages_of_all() -> None:
    """7 steps, tau = 6, inner_tau = 2: two averages of groups, 2 N from each worker, then an all-reduce, which takes N
    through each uplink, 4 s that nothing interrupts, and a latency of 1 s."""
    s = Setting(nodes=6, steps=7)
    islands = Cluster(1.0, np.inf, 0.0, message_bytes=48.0, islands=2, wan_bandwidth=96.0, wan_latency_s=1.0)
    path = run(s, LocalSGD(tau=6, group=3, inner_tau=2), islands)
    assert path.simulation.summary()["bytes_between_islands"] == 2 * 48
    assert path.marks[-1]["bytes_sent"] == pytest.approx(6 * (2 * 2 + 2 * 5 / 6) * 48)
    assert path.marks[-1]["time_s"] == pytest.approx(7 + 4 + 1)


def test_a_round_waits_for_the_slowest_sum_of_its_gradients_and_sends_one_vector() -> None:
    """9 steps of 1 s and two all-reduces among two workers, of two messages of half a vector each: 2 (a + N / 2B)."""
    s = Setting(nodes=2, steps=9)
    path = run(s, LocalSGD(4), Cluster(1.0, 800.0, 0.25, message_bytes=50.0))
    assert path.marks[-1]["time_s"] == pytest.approx(9 + 2 * 2 * (0.25 + 25 / 100), rel=1e-12)
    assert path.marks[-1]["bytes_sent"] == pytest.approx(2 * 2 * 50.0)
