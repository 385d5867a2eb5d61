"""RelaySGD: its authors' loop over all edges, where it ends, and its bytes and times."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import networkx as nx
import numpy as np
import pytest

from dsgd.algorithms.dpsgd import DPSGD
from dsgd.algorithms.relay import Relay
from dsgd.cluster import Cluster
from dsgd.data import Quadratic
from dsgd.topology import BinaryTree, Chain, Ring, Star, Topology, TopologyConfig, symmetric
from tests.support.reference import Array, Direction, Setting
from tests.support.simulated import assert_close, run
from tests.support.timing import timed

SPREAD = np.random.default_rng(8).standard_normal((16, 5))
TREES: dict[str, tuple[TopologyConfig, int]] = {
    "chain": (Chain(), 8),
    "tree": (BinaryTree(), 7),
    "star": (Star(), 6),
}


def built(tree: str) -> Topology:
    config, nodes = TREES[tree]
    return config.build(nodes, 0)


def graph_of(topology: Topology) -> nx.Graph:
    return nx.from_numpy_array(topology.matrix() - np.diag(np.diag(topology.matrix())))


def counts_after(graph: nx.Graph, steps: int) -> dict[tuple[int, int], int]:
    """How many models each edge's last message holds, {(from, to): count}."""
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for _ in range(steps):
        counts = defaultdict(
            int, {(i, j): 1 + sum(counts[k, i] for k in graph[i] if k != j) for i in graph for j in graph[i]}
        )
    return counts


def loop(s: Setting, graph: nx.Graph) -> Array:
    """As in the authors' README: messages and counts of all edges, missing models replaced by a worker's own."""
    X, direction = s.xs(), Direction(s)
    messages: dict[tuple[int, int], Any] = defaultdict(float)
    path = [X]
    for step in range(s.steps):
        Y = X - s.rate(step * s.nodes) * direction(s.gradients(step, X))
        messages = defaultdict(
            float, {(i, j): Y[i] + sum(messages[k, i] for k in graph[i] if k != j) for i in graph for j in graph[i]}
        )
        counts = counts_after(graph, step + 1)
        n = np.array([sum(counts[k, i] for k in graph[i]) for i in range(s.nodes)])[:, None]
        X = ((s.nodes - n) * Y + [sum((messages[k, i] for k in graph[i]), 0 * Y[i]) for i in range(s.nodes)]) / s.nodes
        path.append(X)
    return np.array(path)


@pytest.mark.parametrize("tree", TREES)
def test_agrees_with_the_authors_loop(tree: str) -> None:
    topology = built(tree)
    p, algo = topology.nodes, Relay(topology)
    s = Setting(p, 14, momentum=0.8, nesterov=True, weight_decay=0.05, halve_at=6, start=SPREAD[:p])
    assert_close(run(s, algo).xs, loop(s, graph_of(topology)), 1e-10)
    assert algo.keeps == max(len(peers) for peers in graph_of(topology).adj.values())


def test_every_worker_ends_at_the_minimiser_of_all_however_curvatures_differ() -> None:
    """D-PSGD does not, on the same graph with the same rate."""
    topology = built("tree")
    own = Quadratic(dim=4, condition=1, noise=0, curvature_spread=0.5)
    s = Setting(topology.nodes, steps=160, lr=0.5, data=own)
    end = run(s, Relay(topology), mark_samples=s.samples).xs[-1]
    assert_close(end, np.tile(s.target, (s.nodes, 1)), 1e-8)
    beside = run(s, DPSGD(topology), mark_samples=s.samples).xs[-1]
    assert np.abs(beside.mean(axis=0) - s.target).max() > 0.003


def test_any_tree_will_do() -> None:
    Relay(Ring().build(2, 0)).check(2, 0.1, 0.0)
    topology = Topology("mine", 5, (symmetric([(3,), (3, 2, 4), (1,), (0, 1), (1,)]),))
    Relay(topology).check(5, 0.1, 0.0)
    s = Setting(nodes=5, steps=10, start=SPREAD[:5])
    assert_close(run(s, Relay(topology)).xs, loop(s, graph_of(topology)), 1e-10)


def test_the_neighbours_messages_share_a_port() -> None:
    topology, steps, N = built("tree"), 4, 1e6
    degrees = [degree for _, degree in sorted(graph_of(topology).degree)]
    simulation = timed(Relay(topology), Cluster(1.0, 8e6, 0.75, message_bytes=N), topology.nodes, steps)
    assert simulation.machine.network.bytes_sent(simulation.time_s) == [steps * degree * N for degree in degrees]
    assert simulation.time_s == pytest.approx(steps * (1.0 + 0.75 + max(degrees)), rel=1e-9)
