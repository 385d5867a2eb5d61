from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsgd.algorithms.dpsgd import DPSGD
from dsgd.cluster import Cluster
from dsgd.engines.sim.node import Node, PendingExchange
from dsgd.engines.sim.null_vector import NullVector
from dsgd.topology import Ring
from tests.support.timing import timed


@pytest.mark.parametrize("nodes", [3, 64])
def test_a_step_has_five_events_on_a_ring_of_any_size(nodes: int) -> None:
    """Its gradient ends, and of each of two messages the first bit and the last one arrive."""
    steps, ring = 7, Ring().build(nodes, 0)
    cluster = Cluster(gradient_s=0.01, bandwidth=1e9, latency_s=1e-4)
    machine = timed(DPSGD(ring), cluster, nodes, steps, topology=ring).machine
    assert machine.network.messages == 2 * nodes * steps
    assert machine.loop.processed == 5 * nodes * steps


def test_a_run_for_time_only_keeps_one_vector_however_many_workers_there_are() -> None:
    ring = Ring().build(16, 0)
    machine = timed(DPSGD(ring), Cluster(gradient_s=0.01, bandwidth=1e9, latency_s=1e-4), 16, 3, topology=ring).machine
    assert isinstance(machine.nodes[0].worker.x, NullVector)
    assert len({id(node.worker.x) for node in machine.nodes}) == 1


@given(st.data())
def test_exchanges_get_the_vectors_in_the_order_in_which_each_source_sent_them(data: st.DataObject) -> None:
    """Whatever the order in which exchanges are entered and vectors of different sources arrive."""
    wishes = data.draw(st.lists(st.sets(st.integers(0, 3)).map(sorted), max_size=5))
    left = {source: sum(source in sources for sources in wishes) for source in range(4)}
    node = Node(cast("Any", None), cast("Any", None), torch.empty(0), torch.empty(0))
    entered: list[PendingExchange] = []
    sent = dict.fromkeys(range(4), 0)
    done: list[PendingExchange] = []
    while len(entered) < len(wishes) or any(left.values()):
        choices = [source for source in left if left[source]] + ([None] if len(entered) < len(wishes) else [])
        source = data.draw(st.sampled_from(choices))
        if source is None:
            entered.append(PendingExchange(cast("Any", None), wishes[len(entered)]))
            node.expect(entered[-1])
        else:
            left[source] -= 1
            complete = node.receive(source, (torch.empty(0), sent[source]))
            sent[source] += 1
            assert complete == (bool(node.exchanges) and not node.exchanges[0].missing)
        while (exchange := node.completed()) is not None:
            done.append(exchange)
    assert done == entered
    assert not node.early
    for number, exchange in enumerate(entered):
        assert list(exchange.arrived) == wishes[number]
        for source, message in exchange.arrived.items():
            assert message is not None
            assert message[1] == sum(source in sources for sources in wishes[:number])
