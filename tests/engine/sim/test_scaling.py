from __future__ import annotations

import pytest

from dsgd.algorithms.dpsgd import DPSGD
from dsgd.cluster import Cluster
from dsgd.engines.sim.node import NullVector
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
