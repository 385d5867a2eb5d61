"""Islands: what goes from one to another passes their uplinks, which cost what they carry; all else is as without."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.algorithms.dpsgd import DPSGD
from dsgd.algorithms.easgd import EASGD
from dsgd.algorithms.gossip import Gossip
from dsgd.algorithms.sync import Sync
from dsgd.cluster import Cluster
from dsgd.cluster.compute_trace import Congestion
from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.network import Network
from dsgd.engines.sim.routes import Routes
from dsgd.experiment import Budget
from dsgd.topology import Ring
from tests.engine.sim.conftest import Close
from tests.support.timing import step_times, timed

few = settings(max_examples=12)
SLACK = 1e-9  # relative, for sums of floating-point times

Sent = tuple[float, int, int, float]  # time, sender, receiver, bytes


def arrivals(
    islands: list[int],
    sent: list[Sent],
    rates: list[float],
    uplink: float,
    latency_s: float = 0.5,
    wan_latency_s: float = 2.0,
    chunks: int = 1,
    congestion: Sequence[Congestion] = (),
) -> tuple[list[float], list[float]]:
    """When each message is there, and how many bytes have left each island in the end. At every event no uplink has
    carried more than it can."""
    loop = EventLoop()
    uplinks = Routes(loop, islands, uplink, wan_latency_s, congestion)
    network = Network(loop, rates, latency_s, chunks, uplinks)
    found = [math.nan] * len(sent)
    for number, (time_s, sender, receiver, size) in enumerate(sent):

        def arrived(number: int = number) -> None:
            assert math.isnan(found[number])
            found[number] = loop.now

        loop.at(time_s, network.send, sender, [(receiver, size, arrived, ())])
    while loop.next_time is not None:
        loop.process()
        assert all(out <= uplink * loop.now * (1 + SLACK) for out in uplinks.bytes_out(loop.now))
    return found, uplinks.bytes_out(loop.now)


@pytest.mark.parametrize(("sender", "uplink", "receiver"), [(10.0, 20.0, 50.0), (40.0, 30.0, 50.0), (40.0, 30.0, 5.0)])
def test_one_undisturbed_message_takes_the_latency_and_its_bytes_through_the_slowest(
    sender: float, uplink: float, receiver: float
) -> None:
    found, out = arrivals([0, 0, 1], [(1.0, 0, 2, 100.0), (9e3, 0, 1, 100.0)], [sender, 99.0, receiver], uplink)
    assert found == [1 + 2 + 100 / min(sender, uplink, receiver), 9e3 + 0.5 + 100 / sender]
    assert out == [100.0, 0.0]


def test_the_nodes_of_an_island_share_its_uplink_and_nobody_waits_within() -> None:
    """Three nodes send 10 bytes each through an uplink of 1 byte/s at once: the q-th is there after 10 q s. A message
    behind them to a node of their own island takes no notice. On the way back one from a third island is among them:
    second at the uplink that it comes in by, and undisturbed at its own."""
    islands = [0, 0, 0, 1, 1, 1, 2]
    sent: list[Sent] = [(0.0, i, (i + 3) % 6, 10.0) for i in range(6)]
    sent += [(0.0, 2, 1, 10.0), (0.0, 6, 0, 10.0)]
    found, out = arrivals(islands, sent, [10.0] * 7, 1.0)
    assert found[:3] == [12.0, 22.0, 32.0]
    assert found[3:6] == [12.0, 32.0, 42.0]
    assert found[6] == 0.5 + 2.0  # behind one message at its own port
    assert found[7] == 22.0
    assert out == [30.0, 30.0, 10.0]


def test_a_congested_uplink_goes_on_with_a_part_of_its_rate() -> None:
    """100 bytes at 10 bytes/s: 50 before 5 s, 25 in the 5 s in which half of the rate is left, and 25 afterwards; where
    a fifth is left from 6 to 7 s 3 bytes less by then. What waits behind begins then; nothing else notices."""
    half = Congestion(duration_s=5, factor=0.5, start_s=5)
    fifth = Congestion(duration_s=1, factor=0.2, start_s=6)
    sent: list[Sent] = [(0.0, 0, 2, 100.0), (1.0, 1, 3, 10.0), (6.0, 2, 3, 100.0)]
    for congestion, end_s in ([half], 12.5), ([half, fifth], 12.8):
        found, out = arrivals([0, 0, 1, 1], sent, [100.0] * 4, 10.0, 0.0, 0.0, congestion=congestion)
        assert found == pytest.approx([end_s, end_s + 1, 7.0])
        assert out == [110.0, 0.0]


def test_random_congestion_takes_its_share_of_the_time() -> None:
    """every_s / (every_s + duration_s) of the time have the full rate, the others the factor; each uplink its own."""
    congestion = [Congestion(duration_s=1.0, factor=0.2, every_s=3.0)]
    size = 50_000.0
    found, _ = arrivals([0, 1, 2], [(0.0, 0, 2, size), (0.0, 1, 0, size)], [1e9] * 3, 1.0, 0, 0, congestion=congestion)
    assert found == pytest.approx([size / (0.75 + 0.25 * 0.2)] * 2, rel=0.02)
    assert found[0] != found[1]


@settings(max_examples=40)
@given(st.data(), st.integers(1, 3))
def test_all_arrive_once_in_order_and_none_too_soon(data: st.DataObject, chunks: int) -> None:
    islands = data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=6))
    node = st.integers(0, len(islands) - 1)
    rates = data.draw(st.lists(st.floats(1, 1000), min_size=len(islands), max_size=len(islands)))
    uplink, latency_s, more_s = data.draw(st.floats(1, 1000)), data.draw(st.floats(0, 1)), data.draw(st.floats(0, 1))
    sent = sorted(data.draw(st.lists(st.tuples(st.floats(0, 5), node, node, st.floats(0.1, 500)), max_size=12)))
    found, out = arrivals(islands, sent, rates, uplink, latency_s, latency_s + more_s, chunks)
    crossing = [message for message in sent if islands[message[1]] != islands[message[2]]]
    for (time_s, sender, receiver, size), arrived_s in zip(sent, found, strict=True):
        far = islands[sender] != islands[receiver]
        slowest = min(rates[sender], rates[receiver], *([uplink] if far else []))
        assert arrived_s >= (time_s + latency_s + far * more_s + size / slowest) * (1 - SLACK)
    if chunks == 1:
        for pair in {message[1:3] for message in sent}:
            times = [arrived for message, arrived in zip(sent, found, strict=True) if message[1:3] == pair]
            assert times == sorted(times)
    for island, bytes_out in enumerate(out):
        assert bytes_out == pytest.approx(sum(m[3] for m in crossing if islands[m[1]] == island), rel=SLACK)


@st.composite
def clusters(draw: st.DrawFn, **fields: Any) -> tuple[Cluster, int, int]:
    """A cluster of k islands of m nodes, with vectors that p divides; an uplink is at most as fast as a port."""
    k, m = draw(st.integers(2, 4)), draw(st.integers(1, 5))
    bandwidth, latency_s = draw(st.floats(1e6, 1e10)), draw(st.sampled_from([0.0, 1e-5, 1e-3]))
    return (
        Cluster(
            draw(st.floats(1e-3, 1.0)),
            bandwidth,
            latency_s,
            message_bytes=8.0 * k * m * draw(st.integers(1, 30_000)),
            islands=k,
            wan_bandwidth=max(1.0, bandwidth * draw(st.floats(1e-3, 1))),
            wan_latency_s=latency_s + draw(st.sampled_from([0.0, 1e-4, 0.02])),
            **fields,
        ),
        k,
        m,
    )


@pytest.mark.parametrize("name", ["ring", "hierarchical"])
@few
@given(case=clusters())
def test_an_all_reduce_takes_what_its_messages_take(close: Close, name: str, case: tuple[Cluster, int, int]) -> None:
    """Its formula, and its bytes through the uplinks."""
    cluster, k, m = dataclasses.replace(case[0], collective=name), *case[1:]
    modelled = timed(Sync(overlap=False), cluster, k * m, 1)
    messages = timed(Sync(overlap=False), dataclasses.replace(cluster, collective_messages=True), k * m, 1)
    close(messages.time_s, modelled.time_s)
    around = k if name == "hierarchical" else k * m
    assert cluster.message_bytes is not None
    expected = k * 2 * (around - 1) / around * cluster.message_bytes
    for simulation in (modelled, messages):
        assert simulation.summary()["bytes_between_islands"] == pytest.approx(expected, abs=1)


@few
@given(case=clusters())
def test_the_best_is_the_faster_of_both(close: Close, case: tuple[Cluster, int, int]) -> None:
    cluster, k, m = case
    times = {
        name: timed(Sync(overlap=False), dataclasses.replace(cluster, collective=name), k * m, 3).time_s
        for name in ("ring", "hierarchical")
    }
    best = timed(Sync(overlap=False), cluster, k * m, 3)
    close(best.time_s, min(times.values()))
    close(best.time_s, times[best.summary()["collective"]])


def test_all_reduces_over_slow_uplinks(close: Close) -> None:
    """2 islands of 4 nodes. Latency counts 2 (k - 1) times with rings between the islands; with one around all nodes as
    often as a part crosses on 14 messages of its way, 4 times. Bytes: N through each uplink, with one ring 14/8 N."""
    plain = Cluster(0.01, math.inf, 0.0, message_bytes=1e6, islands=2, wan_bandwidth=math.inf, wan_latency_s=0.02)
    slow = dataclasses.replace(plain, wan_bandwidth=1e8, wan_latency_s=0.0)
    for name, latencies, vectors in (("ring", 4, 14 / 8), ("hierarchical", 2, 1)):
        algo = Sync(overlap=False)
        close(timed(algo, dataclasses.replace(plain, collective=name), 8, 5).time_s, 5 * (0.01 + latencies * 0.02))
        close(timed(algo, dataclasses.replace(slow, collective=name), 8, 5).time_s, 5 * (0.01 + vectors * 0.08))


def test_pairs_and_servers_between_islands(close: Close) -> None:
    """a_w = 1 s, and 4 s for a vector on an uplink, nothing within. dpsgd on a ring of four: two vectors of every step
    through each uplink, which is never idle; a pull: 2 a_w and the vector; two workers of the second island call a
    server in the first."""
    cluster = Cluster(0.1, math.inf, 0.0, message_bytes=50.0, islands=2, wan_bandwidth=100.0, wan_latency_s=1.0)
    ring = Ring().build(4, 0)  # 1 and 2, 3 and 0 are neighbours across
    close(timed(DPSGD(ring), cluster, 4, 3, ring).time_s, 1 + 3 * 2 * 4)
    close(timed(Gossip(tau=1, mode="pull"), cluster, 2, 3).time_s, 3 * (0.1 + 2 + 4))
    times = step_times(EASGD(tau=1), cluster, 4, 1, budget=Budget(time_s=14.2))
    assert [worker[0] for worker in times[2:]] == pytest.approx([10.1, 14.1])  # a_w + q N / B_w, there and back
