from __future__ import annotations

import re
from collections.abc import Callable
from math import cos, pi

import networkx as nx
import numpy as np
import pytest

from dsgd.topology import (
    BinaryTree,
    Chain,
    Complete,
    Exponential,
    Hypercube,
    OnePeerExponential,
    Ring,
    Star,
    Topology,
    TopologyConfig,
    Torus,
)
from tests.support.each_row import each_row

ROUNDING = 1e-13  # sums of at most 100 float64 terms, all <= 1
TREES: list[TopologyConfig] = [Chain(), BinaryTree(), Star()]
ANY_SIZE: list[TopologyConfig] = [*TREES, Ring(), Complete(), Exponential(), OnePeerExponential()]
SIXTEEN: list[TopologyConfig] = [*ANY_SIZE, Torus(), Hypercube()]


def assert_doubly_stochastic(topology: Topology) -> None:
    for step, rows in enumerate(topology.rows):
        w = topology.matrix(step)
        assert (w >= 0).all()
        np.testing.assert_allclose(w.sum(axis=0), 1, atol=ROUNDING)
        np.testing.assert_allclose(w.sum(axis=1), 1, atol=ROUNDING)
        for i, row in enumerate(rows):
            assert list(row) == sorted(row)
            assert i in row


# --- what every topology owes


@pytest.mark.parametrize("config", SIXTEEN, ids=repr)
def test_every_choice_is_doubly_stochastic(config: TopologyConfig):
    """Rows and columns of every W of the cycle are nonnegative and sum to 1; rows ascend and hold the diagonal."""
    assert_doubly_stochastic(config.build(16, seed=0))


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 7, 12])
@pytest.mark.parametrize("config", ANY_SIZE, ids=repr)
def test_choices_without_a_rule_on_nodes_take_any_number(config: TopologyConfig, nodes: int):
    """Odd, prime and tiny numbers of nodes are doubly stochastic too."""
    assert_doubly_stochastic(config.build(nodes, seed=0))


@pytest.mark.parametrize("config", SIXTEEN, ids=repr)
def test_sources_and_targets_are_each_others_inverse_at_every_step(config: TopologyConfig):
    """i receives from j exactly when j sends to i, and exactly when W_ij > 0; steps repeat with the cycle."""
    topology = config.build(16, seed=0)
    for step in range(2 * len(topology.rows)):
        received = {(i, j) for i in range(16) for j in topology.sources(i, step)}
        sent = {(i, j) for j in range(16) for i in topology.targets(j, step)}
        w = topology.matrix(step)
        assert received == sent == {(i, j) for i in range(16) for j in range(16) if i != j and w[i, j] > 0}
        assert all(topology.mixing_row(i, step)[j] == w[i, j] for i, j in received)


@pytest.mark.parametrize("nodes", [1, 2, 4, 5, 8, 16])
@pytest.mark.parametrize("config", [*ANY_SIZE, Hypercube()], ids=repr)
def test_sides_are_those_of_a_bipartite_graph(config: TopologyConfig, nodes: int):
    """Every edge leads from one to the other; None exactly where networkx finds no such sides."""
    if isinstance(config, Hypercube) and nodes == 5:
        return
    topology = config.build(nodes, seed=0)
    edges = [(i, j) for i in range(nodes) for j in topology.neighbours(i)]
    graph = nx.Graph(edges)
    assert (topology.sides is None) == (not nx.is_bipartite(graph))
    if topology.sides is not None:
        assert len(topology.sides) == nodes
        assert not topology.sides[0]
        assert all(topology.sides[i] != topology.sides[j] for i, j in edges)


@pytest.mark.parametrize("config", SIXTEEN, ids=repr)
def test_peers_come_in_the_order_of_their_distance_ahead(config: TopologyConfig):
    """Sources and targets ascend in (peer - rank) mod p, neighbours ascend and are the union of the sources."""
    topology = config.build(16, seed=0)
    cycle = range(len(topology.rows))
    for rank in range(16):
        for step in cycle:
            for peers in (topology.sources(rank, step), topology.targets(rank, step)):
                ahead = [(peer - rank) % 16 for peer in peers]
                assert ahead == sorted(set(ahead) - {0})
        assert list(topology.neighbours(rank)) == sorted({j for step in cycle for j in topology.sources(rank, step)})


@pytest.mark.parametrize("config", [*ANY_SIZE, Torus(), Hypercube()], ids=repr)
def test_one_node_is_alone_and_two_average_in_one_step(config: TopologyConfig):
    """W = [1] and W = [[1/2, 1/2], [1/2, 1/2]], gap 1."""
    alone = config.build(1, seed=0)
    assert (alone.rows, alone.neighbours(0), alone.spectral_gap) == ((({0: 1.0},),), (), 1)
    topology = config.build(2, seed=0)
    assert topology.rows == (({0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}),)
    assert (topology.sources(0), topology.targets(1)) == ((1,), (0,))
    assert topology.spectral_gap == 1


# --- closed forms


def eigenvalues(topology: Topology) -> np.ndarray:
    return np.linalg.eigvalsh(topology.matrix())


@pytest.mark.parametrize(("nodes", "neighbours_of_0"), [(6, (1, 2, 3)), (4, (1, 2))])
def test_a_torus_side_of_two_counts_its_neighbour_once(nodes: int, neighbours_of_0: tuple[int, ...]):
    """2 x 3 has degree 3, 2 x 2 is a ring of four."""
    assert Torus().build(nodes, seed=0).neighbours(0) == neighbours_of_0


def test_the_torus_is_as_square_as_the_number_of_nodes_allows():
    """12 = 3 x 4: node 0 is next to its column's 4 and 8 and its row's 1 and 3."""
    assert Torus().build(12, seed=0).neighbours(0) == (1, 3, 4, 8)


@pytest.mark.parametrize("nodes", [3, 8, 13])
def test_eigenvalues_of_the_chain(nodes: int):
    """(1 + 2 cos(pi k / p)) / 3; the gap is (2/3)(1 - cos(pi / p))."""
    chain = Chain().build(nodes, seed=0)
    expected = sorted((1 + 2 * cos(pi * k / nodes)) / 3 for k in range(nodes))
    np.testing.assert_allclose(eigenvalues(chain), expected, atol=ROUNDING)
    assert chain.spectral_gap == pytest.approx(2 / 3 * (1 - cos(pi / nodes)), abs=ROUNDING)
    assert [chain.neighbours(i) for i in range(3)] == [(1,), (0, 2), (1,) if nodes == 3 else (1, 3)]


@pytest.mark.parametrize(("nodes", "diameter", "gap"), [(8, 4, 0.067), (16, 6, 0.0242)])
def test_the_binary_tree_has_two_children_below_each_node_but_the_first(nodes: int, diameter: int, gap: float):
    tree = BinaryTree().build(nodes, seed=0)
    graph = nx.from_edgelist((i, j) for i in range(nodes) for j in tree.neighbours(i))
    assert {frozenset(edge) for edge in graph.edges} == {frozenset((i, i // 2)) for i in range(1, nodes)}
    assert sorted(dict(graph.degree).values()) == sorted([1] * (nodes // 2 + 1) + [3] * (nodes // 2 - 1))
    assert nx.diameter(graph) == diameter
    assert tree.spectral_gap == pytest.approx(gap, abs=5e-5)


@pytest.mark.parametrize("config", SIXTEEN, ids=repr)
def test_what_is_a_tree(config: TopologyConfig):
    assert config.build(16, seed=0).is_tree == (config in TREES)
    if config in ANY_SIZE:
        assert [config.build(nodes, seed=0).is_tree for nodes in (1, 2)] == [True, True]
    third = dict.fromkeys(range(3), 1 / 3)
    assert not Topology("triangle and one alone", 4, ((third, third, third, {3: 1.0}),)).is_tree  # as many edges


@pytest.mark.parametrize("config", SIXTEEN, ids=repr)
def test_the_least_eigenvalue(config: TopologyConfig):
    topology = config.build(16, seed=0)
    if topology.is_symmetric:
        assert topology.least_eigenvalue == pytest.approx(eigenvalues(topology)[0], abs=ROUNDING)


@pytest.mark.parametrize("config", [Chain(), Star(), Ring(), Torus(), Exponential(), OnePeerExponential()], ids=repr)
def test_distance_from_the_mean_shrinks_per_cycle_by_one_minus_the_gap(config: TopologyConfig):
    """The gap is a bound for every start and is attained by some: compared with 100 cycles from a random start."""
    topology = config.build(12, seed=0)
    x = np.random.default_rng(1).standard_normal((12, 3))
    rate = (1 - topology.spectral_gap) ** len(topology.rows)
    ratio = 0.0
    for _ in range(100):
        x -= x.mean(axis=0)  # W keeps the mean; what rounding adds to it would soon outweigh the differences
        x /= np.linalg.norm(x)
        for step in range(len(topology.rows)):
            x = topology.matrix(step) @ x
        ratio = np.linalg.norm(x - x.mean(axis=0))
        assert ratio <= rate * (1 + 1e-9)
    assert ratio == pytest.approx(rate, rel=1e-6)


# --- shares that are pushed, in graphs of the user's


def irregular() -> Topology:
    """From 0 to 1 and 2, from both to 3, from there to 0; columns sum to 1, rows do not."""
    third = 1 / 3
    rows = ({0: third, 3: 0.5}, {0: third, 1: 0.5}, {0: third, 2: 0.5}, {1: 0.5, 2: 0.5, 3: 0.5})
    return Topology("irregular", 4, (rows,))


def test_push_sum_contracts_by_the_gap_in_the_long_run():
    """By the second largest |eigenvalue| of P in a step, as measured on the ratios."""
    topology, x, w = irregular(), np.random.default_rng(0).standard_normal(4), np.ones(4)
    spreads = []
    for _ in range(40):
        x, w = topology.matrix() @ x, topology.matrix() @ w
        spreads.append(np.ptp(x / w))
    rate = (spreads[-1] / spreads[19]) ** (1 / 20)
    assert rate == pytest.approx(1 - topology.spectral_gap, rel=0.03)


# --- errors


@each_row(
    ("build", "text"),
    [
        (
            lambda: irregular().check_doubly_stochastic("a"),
            "algo=a needs a topology with rows and columns that sum to 1, got irregular, where node 3 takes in more",
        ),
        (  # node 2 takes in 1, the others do not
            lambda: Topology("partly", 3, (({0: 0.5}, {0: 0.5, 1: 1.0}, {2: 1.0}),)).check_doubly_stochastic("a"),
            "algo=a needs a topology with rows and columns that sum to 1, got partly, where node 1 takes in more",
        ),
    ],
)
def test_impossible_choices_name_rule_and_value(build: Callable[[], object], text: str):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        build()
