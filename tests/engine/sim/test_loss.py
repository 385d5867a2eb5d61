"""Lost messages in virtual time: how many, what sending them again costs, and that none overtakes another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.algorithms.gossip import Gossip
from dsgd.algorithms.sync import Sync
from dsgd.cluster import Cluster
from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.network import LossyNetwork, Network
from dsgd.streams import stream
from tests.engine.sim.conftest import Close
from tests.support.timing import timed

LOSS, AGAIN_S, SEED = 0.4, 0.7, 5


def lossy(rates: list[float], latency_s: float, chunks: int = 1) -> tuple[EventLoop, LossyNetwork]:
    loop = EventLoop()
    return loop, LossyNetwork(loop, rates, latency_s, chunks, loss=lambda *_: LOSS, retransmit_s=AGAIN_S, seed=SEED)


def play(loop: EventLoop) -> None:
    while loop.next_time is not None:
        loop.process()


def losses(node: int, seed: int = SEED, loss: float = LOSS) -> Callable[[], int]:
    """How often a node's next message is lost before it arrives."""
    random = stream("loss", seed, node)
    return lambda: int(random.geometric(1 - loss)) - 1


@pytest.mark.parametrize("chunks", [1, 4])
def test_each_loss_costs_the_message_once_more_and_the_wait(close: Close, chunks: int) -> None:
    """k losses of N bytes: k (N / B + r) + N / B + a. All attempts are sent, one is received."""
    loop, network = lossy([10.0, 10.0], 0.25, chunks)
    sent_s, arrived_s = [1000.0 * i for i in range(200)], []
    for time_s in sent_s:
        loop.at(time_s, network.send, 0, [(1, 20.0, lambda: arrived_s.append(loop.now), ())])
    play(loop)
    draw = losses(0)
    lost = [draw() for _ in sent_s]
    for begin_s, k, end_s in zip(sent_s, lost, arrived_s, strict=True):
        close(end_s - begin_s, k * (2.0 + AGAIN_S) + 2.0 + 0.25)
    assert (network.lost, network.resent, network.messages) == (0, sum(lost), 200 + sum(lost))
    assert network.bytes_sent(loop.now) == [20.0 * (200 + sum(lost)), 0]
    assert network.bytes_received(loop.now) == [0, 20.0 * 200]


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.integers(0, 2), st.lists(st.integers(0, 2), min_size=1, max_size=4)), max_size=20
    ),
    st.integers(1, 3),
)
def test_every_message_arrives_once_and_none_overtakes_another(
    bursts: list[tuple[float, int, list[int]]], chunks: int
) -> None:
    """Who sends when to whom; to oneself, too."""
    loop, network = lossy([10.0, 20.0, 30.0], 0.1, chunks)
    sent: dict[tuple[int, int], list[int]] = {}
    arrived: dict[tuple[int, int], list[int]] = {}

    def send(number: int, sender: int, receivers: list[int]) -> None:
        messages = []
        for i, receiver in enumerate(receivers):
            sent.setdefault((sender, receiver), []).append(4 * number + i)
            messages.append((receiver, 5.0, arrive, ((sender, receiver), 4 * number + i)))
        network.send(sender, messages)

    def arrive(pair: tuple[int, int], number: int) -> None:
        arrived.setdefault(pair, []).append(number)

    for number, (time_s, sender, receivers) in enumerate(bursts):
        loop.at(time_s, send, number, sender, receivers)
    play(loop)
    assert arrived == sent


def lossy_cluster(latency_s: float, **fields: Any) -> Cluster:
    """Messages take the latency alone."""
    parts: dict[str, Any] = {"collective": "ring", "collective_messages": True, "loss": LOSS, "retransmit_s": AGAIN_S}
    return Cluster(1.0, math.inf, latency_s, **(parts | fields))


def ring_passes(p: int, draw: list[Callable[[], int]], rounds: int, latency_s: float) -> float:
    """How long it takes until every node has sent and received `rounds` messages around a ring. A node sends when it
    has what its predecessor has sent before."""
    free_s, delivered_s = np.zeros(p), np.zeros(p)
    for _ in range(rounds):
        arrived_s = [free_s[i] + draw[i]() * AGAIN_S + latency_s for i in range(p)]
        delivered_s = np.maximum(delivered_s, np.roll(arrived_s, 1))  # in the order of sending
        free_s = np.maximum(free_s, delivered_s)
    return free_s.max()


@pytest.mark.parametrize("p", [2, 5])
def test_an_all_reduce_takes_what_its_losses_cost(close: Close, p: int) -> None:
    """2 (p - 1) rounds, each of which a lost message holds up for the node behind; all leave when the last one has."""
    steps, a = 30, 0.01
    found = timed(Sync(overlap=False), lossy_cluster(a), p, steps, seed=SEED)
    draw = [losses(node) for node in range(p)]
    close(found.time_s, sum(1.0 + ring_passes(p, draw, 2 * (p - 1), a) for _ in range(steps)))
    summary = found.summary()
    assert summary["messages_lost"] == 0
    assert summary["messages_resent"] == found.machine.network.messages - steps * 2 * (p - 1) * p > 0


def test_without_loss_the_network_draws_nothing_and_the_summary_says_nothing() -> None:
    found = timed(Gossip(mode="push"), lossy_cluster(0.01, loss=0.0), 3, 5)
    assert type(found.machine.network) is Network
    assert not {"messages_lost", "messages_resent"} & found.summary().keys()
