"""All-reduces as messages: by themselves they take what the cost model says, beside others and over slow ports not."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.algorithms.delayfree import DelayFree
from dsgd.algorithms.sync import Sync
from dsgd.cluster import COLLECTIVES, Cluster
from dsgd.engines.sim.collectives import bytes_of_nodes
from dsgd.worker import Algorithm, Worker
from tests.engine.sim.conftest import Close
from tests.support.timing import timed

NAMED = sorted(set(COLLECTIVES) - {"best"})
few = settings(max_examples=20)


def exact(name: str, p: int) -> bool:
    """Whether messages among p nodes never meet at a port, as the cost model has it."""
    return name in ("ring", "chain", "star", "store", "hierarchical") or p & (p - 1) == 0


@st.composite
def clusters(draw: st.DrawFn, **fields: Any) -> Cluster:
    """With vectors that are cut in whole numbers, by up to 10 nodes and in up to 3 buckets."""
    return Cluster(
        gradient_s=draw(st.floats(1e-3, 1.0)),
        bandwidth=draw(st.floats(1e6, 1e10)),
        latency_s=draw(st.one_of(st.just(0.0), st.floats(1e-6, 0.1))),
        message_bytes=8.0 * 2520 * 3 * draw(st.integers(1, 600)),
        collective_messages=True,
        **fields,
    )


def modelled(cluster: Cluster) -> Cluster:
    return dataclasses.replace(cluster, collective_messages=False)


@pytest.mark.parametrize("name", NAMED)
@few
@given(data=st.data(), p=st.integers(1, 10), algo=st.sampled_from([Sync(overlap=False), Sync(), DelayFree(tau=6)]))
def test_equal_nodes_take_what_the_cost_model_says(
    close: Close, name: str, data: st.DataObject, p: int, algo: Algorithm
) -> None:
    """Time, and the bytes of every node. Of surplus nodes that are folded in, messages may meet others."""
    chunks = data.draw(st.sampled_from([1, 4])) if name == "ring" else 1  # in others two messages may leave together
    cluster = data.draw(clusters(collective=name, chunks_per_message=chunks))
    found, expected = timed(algo, cluster, p, 6), timed(algo, modelled(cluster), p, 6)
    assert found.machine.network.bytes_sent(math.inf) == pytest.approx(
        expected.machine.network.bytes_sent(math.inf), rel=1e-12
    )
    assert found.summary()["collective"] == expected.summary()["collective"]
    if exact(name, p):
        close(found.time_s, expected.time_s)
    elif name == "tree":  # formula: every path is as long as the longest
        assert found.time_s <= expected.time_s * (1 + 1e-9)
    else:
        assert 0.6 <= found.time_s / expected.time_s <= 1.5


@pytest.mark.parametrize(("p", "items"), [(7, 1), (3, 5), (10, 1000), (2, 1001), (7, 100_003)])
def test_the_longest_segment_of_a_ring_sets_its_pace(close: Close, p: int, items: int) -> None:
    """2 (p - 1) (a + ceil(d / p) / B) for d numbers; all nodes together send 2 (p - 1) N."""
    a, rate, steps = 1e-3, 1e6, 3
    cluster = Cluster(0.01, 8 * rate, a, message_bytes=8 * items, collective="ring", collective_messages=True)
    found = timed(Sync(overlap=False), cluster, p, steps)
    close(found.time_s, steps * (0.01 + 2 * (p - 1) * (a + 8 * -(-items // p) / rate)))
    sent = found.machine.network.bytes_sent(math.inf)
    assert sum(sent) == steps * 2 * (p - 1) * 8 * items
    assert max(abs(each - steps * 2 * (p - 1) / p * 8 * items) for each in sent) <= steps * 2 * 8
    assert found.machine.network.messages == steps * 2 * (p - 1) * p


class Beside(Algorithm):
    """An all-reduce, and vectors that every node sends to its right neighbour meanwhile."""

    lockstep: ClassVar[bool] = True

    async def train(self, worker: Worker) -> None:
        while not worker.done:
            pushed = worker.start(worker.push((worker.rank + 1) % worker.nodes, worker.x.clone()))
            mean = worker.start(worker.all_reduce_mean(worker.x.clone()))
            await pushed
            await mean
            worker.step(await worker.gradient())


def test_other_messages_and_those_of_a_ring_share_the_ports() -> None:
    """Those of the ring wait for the vector before them: N / B more, where the cost model has them for nothing."""
    p, n, transfer = 4, 1e6, 0.008
    cluster = Cluster(0.01, 8 * n / transfer, 0.0, message_bytes=n, collective="ring", collective_messages=True)
    ring = 2 * (p - 1) / p * transfer
    found = timed(Beside(), cluster, p, 5)
    assert found.time_s == pytest.approx(5 * (0.01 + transfer + ring), rel=1e-9)
    assert timed(Beside(), modelled(cluster), p, 5).time_s == pytest.approx(5 * (0.01 + ring), rel=1e-9)
    assert found.machine.network.bytes_sent(math.inf) == pytest.approx([5 * (n + 2 * (p - 1) / p * n)] * p, rel=1e-12)


class ManyAtOnce(Algorithm):
    """All-reduces of the numbers 0, 1, 2 begun together, by workers of different speed, with what came out."""

    async def train(self, worker: Worker) -> None:
        while not worker.done:
            arriving = [worker.start(worker.all_reduce_mean(worker.x * 0 + number)) for number in range(3)]
            await worker.gradient()
            for number, arrival in enumerate(arriving):
                assert float((await arrival - number).abs().max()) == 0
            worker.step(worker.x * 0)


@pytest.mark.parametrize("name", NAMED)
def test_collectives_under_way_together_stay_in_order(close: Close, name: str) -> None:
    """With equal nodes one after the other; with jitter and slow nodes at least not mixed up."""
    p = 8
    cluster = Cluster(0.001, 1e9, 1e-4, message_bytes=8e6, collective=name, collective_messages=True)
    equal = timed(ManyAtOnce(), cluster, p, 3, gradients="loop")
    close(equal.time_s, timed(ManyAtOnce(), modelled(cluster), p, 3, gradients="loop").time_s)
    for nodes in (p, 7):
        noisy = dataclasses.replace(cluster, jitter=1.0, slow_nodes={1: 5.0}, node_bandwidth={3: 1e8})
        done = timed(ManyAtOnce(), noisy, nodes, 4, gradients="loop")
        assert done.status == "completed"
        sent = [each * 12 for each in bytes_of_nodes(name, nodes, 8e6)]
        assert done.machine.network.bytes_sent(math.inf) == pytest.approx(sent, abs=12 * 2 * 8)
