"""Staleness: how many updates came between reading what something was made from and its being applied."""

from __future__ import annotations

from typing import Any

import pytest

from dsgd.algorithms.adpsgd import ADPSGD
from dsgd.algorithms.delayfree import DelayFree
from dsgd.algorithms.downpour import Downpour
from dsgd.algorithms.dpsgd import DPSGD
from dsgd.algorithms.easgd import EASGD
from dsgd.algorithms.gossip import Gossip
from dsgd.algorithms.sync import Sync
from dsgd.cluster import Cluster
from dsgd.topology import Ring
from dsgd.worker import Algorithm
from tests.support.timing import timed

IDEAL = Cluster(0.25, float("inf"), 0.0, message_bytes=1e6)
IN_TURN = Cluster(0.25, 8e8, 0.0, message_bytes=1e6)  # 10 ms a message: the server's port serves one after the other
ROUNDS = 10


@pytest.mark.parametrize(("method", "p", "servers"), [(Downpour, 8, 1), (EASGD, 8, 3), (Downpour, 2, 3), (EASGD, 1, 1)])
def test_of_p_equal_workers_at_a_server_it_is_p_minus_1(method: type[Algorithm], p: int, servers: int) -> None:
    """In steady state all the others come in between. In the first round, from the common start, the q-th of them meets
    the q - 1 before it. Counted on every shard."""
    options: dict[str, Any] = {"servers": servers} | ({"tau": 1} if method is EASGD else {})
    summary = timed(method(**options), IN_TURN, p, ROUNDS).summary()
    assert summary["staleness_max"] == p - 1
    first = (p - 1) / 2
    # of an exchange, which reads and updates at once, each worker's next one may have come at the end of the run
    slack = 1 / ROUNDS if method is EASGD else 0
    assert summary["staleness_mean"] == pytest.approx((first + (ROUNDS - 1) * (p - 1)) / ROUNDS, rel=1e-12, abs=slack)


@pytest.mark.parametrize("overlap", [True, False])
def test_of_synchronous_sgd_it_is_0(overlap: bool) -> None:
    summary = timed(Sync(overlap), Cluster(0.1, 1e7, 0.01, message_bytes=1e6, slow_nodes={1: 2.0}), 4, 5).summary()
    assert summary["staleness_mean"] == summary["staleness_max"] == 0


@pytest.mark.parametrize(("bandwidth", "slow"), [(float("inf"), {1: 3.0}), (1e6, {}), (4e6, {1: 3.0})])
def test_of_averaging_without_delay_it_is_a_cycle_where_the_mean_is_merged(
    bandwidth: float, slow: dict[int, float]
) -> None:
    """However long it was there already, and whoever is ahead: 4 steps of its own, and 2 in a last cycle of 2."""
    cluster = Cluster(0.1, bandwidth, 0.0, message_bytes=1e6, slow_nodes=slow)
    summary = timed(DelayFree(tau=8), cluster, 4, 14).summary()
    assert summary["staleness_max"] == 4
    assert summary["staleness_mean"] == pytest.approx((3 * 4 + 2) / 4)


def test_of_an_exchange_it_is_the_steps_that_the_sender_is_ahead() -> None:
    """On a ring nobody is more than one step ahead of a neighbour whose vector it needs."""
    topology = Ring().build(4, 0)
    equal = timed(DPSGD(topology), IDEAL, 4, 6, topology).summary()
    assert equal["staleness_max"] == 0
    slow = Cluster(0.25, float("inf"), 0.01, message_bytes=1e6, slow_nodes={0: 4.0})
    assert timed(DPSGD(topology), slow, 4, 6, topology).summary()["staleness_max"] == 1


def test_of_a_pull_it_is_what_the_peer_has_done_since_it_published() -> None:
    """Published after every step: none, unless the message takes longer than the peer's next steps."""
    topology = Ring().build(2, 0)
    quick = Cluster(0.25, float("inf"), 0.0, message_bytes=1e6)
    assert timed(Gossip(), quick, 2, 6, topology).summary()["staleness_max"] == 0
    far = Cluster(0.25, float("inf"), 0.3, message_bytes=1e6, slow_nodes={0: 4.0})
    assert timed(Gossip(), far, 2, 6, topology).summary()["staleness_max"] >= 1


def test_of_an_ask_it_is_what_each_end_has_done_while_its_vector_was_under_way() -> None:
    """Gradients of 0.25 s and 1 s. Every 0.75 s a question takes 0.3 s, within which its fast sender makes a step, and
    the answer as long, within which the slow peer makes one in every fourth."""
    topology = Ring().build(2, 0)
    quick = Cluster(0.25, float("inf"), 0.0, message_bytes=1e6)
    assert timed(ADPSGD(topology), quick, 2, 6, topology).summary()["staleness_max"] == 0
    far = Cluster(0.25, float("inf"), 0.3, message_bytes=1e6, slow_nodes={1: 4.0})
    summary = timed(ADPSGD(topology), far, 2, 30, topology).summary()
    assert summary["staleness_max"] == 1
    assert summary["staleness_mean"] == pytest.approx((1 + 1 / 4) / 2)
