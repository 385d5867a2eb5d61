from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from importlib.resources import files
from math import ceil, cos, log2, pi, sqrt

import networkx as nx
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

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


@each_row("config", SIXTEEN)
def test_every_choice_is_doubly_stochastic(config: TopologyConfig):
    """Rows and columns of every W of the cycle are nonnegative and sum to 1; rows ascend and hold the diagonal."""
    assert_doubly_stochastic(config.build(16, seed=0))


@each_row("nodes", [1, 2, 3, 5, 7, 12])
@each_row("config", ANY_SIZE)
def test_choices_without_a_rule_on_nodes_take_any_number(config: TopologyConfig, nodes: int):
    """Odd, prime and tiny numbers of nodes are doubly stochastic too."""
    assert_doubly_stochastic(config.build(nodes, seed=0))


@each_row("config", SIXTEEN)
def test_sources_and_targets_are_each_others_inverse_at_every_step(config: TopologyConfig):
    """i receives from j exactly when j sends to i, and exactly when W_ij > 0; steps repeat with the cycle."""
    topology = config.build(16, seed=0)
    for step in range(2 * len(topology.rows)):
        received = {(i, j) for i in range(16) for j in topology.sources(i, step)}
        sent = {(i, j) for j in range(16) for i in topology.targets(j, step)}
        w = topology.matrix(step)
        assert received == sent == {(i, j) for i in range(16) for j in range(16) if i != j and w[i, j] > 0}
        assert all(topology.mixing_row(i, step)[j] == w[i, j] for i, j in received)


@each_row("nodes", [1, 2, 4, 5, 8, 16])
@each_row("config", [*ANY_SIZE, Hypercube()])
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


@each_row("config", SIXTEEN)
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


@each_row("config", [*ANY_SIZE, Torus(), Hypercube(), RandomRegular()])
def test_one_node_is_that_node_alone(config: TopologyConfig):
    """p = 1: W = [1], nobody to send to, gap 1."""
    topology = config.build(1, seed=0)
    assert topology.rows == (({0: 1.0},),)
    assert topology.sources(0) == topology.targets(0) == topology.neighbours(0) == ()
    assert topology.spectral_gap == 1


@each_row("config", [*ANY_SIZE, Torus(), Hypercube(), RandomRegular(degree=1)])
def test_two_nodes_average_in_one_step(config: TopologyConfig):
    """p = 2: the one neighbour counts once, W = [[1/2, 1/2], [1/2, 1/2]], gap 1."""
    topology = config.build(2, seed=0)
    assert topology.rows == (({0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}),)
    assert (topology.sources(0), topology.targets(1)) == ((1,), (0,))
    assert topology.spectral_gap == 1


@each_row("choice", sorted(p.name for p in files("dsgd.conf").joinpath("topology").iterdir()))
def test_every_yaml_builds_the_topology_it_is_named_after(choice: str, tmp_path: Path):
    """The word users type is the name of the topology; the first line of the file says what it is."""
    text = files("dsgd.conf").joinpath("topology", choice).read_text()
    topology = instantiate(OmegaConf.create(text)).build(nodes=8, seed=0)
    assert f"{topology.name}.yaml" == choice
    assert text.startswith("# ")


# --- closed forms


def eigenvalues(topology: Topology) -> np.ndarray:
    return np.linalg.eigvalsh(topology.matrix())


@each_row("nodes", [3, 4, 5, 8, 16, 32, 100])
def test_eigenvalues_of_the_ring(nodes: int):
    """(1 + 2 cos(2 pi k / p)) / 3; for p >= 4 the gap is (2/3)(1 - cos(2 pi / p)); weights are the float 1/3."""
    ring = Ring().build(nodes, seed=0)
    expected = sorted((1 + 2 * cos(2 * pi * k / nodes)) / 3 for k in range(nodes))
    np.testing.assert_allclose(eigenvalues(ring), expected, atol=ROUNDING)
    if nodes >= 4:
        assert ring.spectral_gap == pytest.approx(2 / 3 * (1 - cos(2 * pi / nodes)), abs=ROUNDING)
    assert {w for row in ring.rows[0] for w in row.values()} == {1 / 3}


@each_row(("rows", "columns"), [(3, 3), (4, 4), (3, 5), (6, 6), (10, 10)])
def test_eigenvalues_of_the_torus(rows: int, columns: int):
    """(1 + 2 cos(2 pi i / r) + 2 cos(2 pi j / c)) / 5; the gap follows from the second largest in absolute value."""
    torus = Torus().build(rows * columns, seed=0)
    waves = [(i / rows, j / columns) for i in range(rows) for j in range(columns)]
    expected = sorted((1 + 2 * cos(2 * pi * a) + 2 * cos(2 * pi * b)) / 5 for a, b in waves)
    np.testing.assert_allclose(eigenvalues(torus), expected, atol=ROUNDING)
    assert torus.spectral_gap == pytest.approx(1 - sorted(map(abs, expected))[-2], abs=ROUNDING)


@each_row(("nodes", "rows", "neighbours_of_0"), [(6, 2, (1, 2, 3)), (4, 2, (1, 2)), (5, 1, (1, 4))])
def test_a_torus_side_of_two_counts_its_neighbour_once(nodes: int, rows: int, neighbours_of_0: tuple[int, ...]):
    """2 x 3 has degree 3, 2 x 2 is a ring of four, 1 x 5 a ring of five."""
    assert Torus(rows=rows).build(nodes, seed=0).neighbours(0) == neighbours_of_0


def test_the_torus_is_as_square_as_the_number_of_nodes_allows():
    """12 = 3 x 4: node 0 is next to its column's 4 and 8 and its row's 1 and 3."""
    assert Torus().build(12, seed=0).neighbours(0) == (1, 3, 4, 8)


@each_row("q", [1, 2, 3, 4, 5])
def test_eigenvalues_of_the_hypercube(q: int):
    """1 - 2k/(q+1), C(q, k) times; gap 2/(q+1); the neighbours of i are i with one bit flipped."""
    cube = Hypercube().build(2**q, seed=0)
    expected = sorted(1 - 2 * i.bit_count() / (q + 1) for i in range(2**q))
    np.testing.assert_allclose(eigenvalues(cube), expected, atol=ROUNDING)
    assert cube.spectral_gap == pytest.approx(2 / (q + 1), abs=ROUNDING)
    assert all(cube.neighbours(i) == tuple(sorted(i ^ (1 << k) for k in range(q))) for i in range(2**q))


@each_row("nodes", [3, 8, 13])
def test_eigenvalues_of_the_chain(nodes: int):
    """(1 + 2 cos(pi k / p)) / 3; the gap is (2/3)(1 - cos(pi / p))."""
    chain = Chain().build(nodes, seed=0)
    expected = sorted((1 + 2 * cos(pi * k / nodes)) / 3 for k in range(nodes))
    np.testing.assert_allclose(eigenvalues(chain), expected, atol=ROUNDING)
    assert chain.spectral_gap == pytest.approx(2 / 3 * (1 - cos(pi / nodes)), abs=ROUNDING)
    assert [chain.neighbours(i) for i in range(3)] == [(1,), (0, 2), (1,) if nodes == 3 else (1, 3)]


@each_row(("nodes", "diameter", "gap"), [(8, 4, 0.067), (16, 6, 0.0242)])
def test_the_binary_tree_has_two_children_below_each_node_but_the_first(nodes: int, diameter: int, gap: float):
    tree = BinaryTree().build(nodes, seed=0)
    graph = nx.from_edgelist((i, j) for i in range(nodes) for j in tree.neighbours(i))
    assert {frozenset(edge) for edge in graph.edges} == {frozenset((i, i // 2)) for i in range(1, nodes)}
    assert sorted(dict(graph.degree).values()) == sorted([1] * (nodes // 2 + 1) + [3] * (nodes // 2 - 1))
    assert nx.diameter(graph) == diameter
    assert tree.spectral_gap == pytest.approx(gap, abs=5e-5)


@each_row("config", SIXTEEN)
def test_what_is_a_tree(config: TopologyConfig):
    assert config.build(16, seed=0).is_tree == (config in TREES)
    if config in ANY_SIZE:
        assert [config.build(nodes, seed=0).is_tree for nodes in (1, 2)] == [True, True]
    third = dict.fromkeys(range(3), 1 / 3)
    assert not Topology("triangle and one alone", 4, ((third, third, third, {3: 1.0}),)).is_tree  # as many edges


@each_row("config", SIXTEEN)
def test_the_least_eigenvalue(config: TopologyConfig):
    topology = config.build(16, seed=0)
    if topology.is_symmetric:
        assert topology.least_eigenvalue == pytest.approx(eigenvalues(topology)[0], abs=ROUNDING)


@each_row("nodes", [3, 4, 10, 33])
def test_eigenvalues_of_the_star(nodes: int):
    """1 once, 1 - 1/p for the p - 2 differences of leaves, 0 once; gap 1/p."""
    star = Star().build(nodes, seed=0)
    np.testing.assert_allclose(eigenvalues(star), [0, *[1 - 1 / nodes] * (nodes - 2), 1], atol=ROUNDING)
    assert star.spectral_gap == pytest.approx(1 / nodes, abs=ROUNDING)
    assert star.mixing_row(0) == dict.fromkeys(range(nodes), 1 / nodes)


@each_row("nodes", [3, 8, 13])
def test_complete_graph_averages_in_one_step(nodes: int):
    """W = 11'/p, gap 1."""
    complete = Complete().build(nodes, seed=0)
    assert (complete.matrix() == 1 / nodes).all()
    assert complete.spectral_gap == pytest.approx(1, abs=ROUNDING)


@each_row("nodes", [4, 6, 8, 10, 32, 100])
def test_gap_of_the_static_exponential_graph_of_even_size(nodes: int):
    """2/(L+1) for even p: the alternating vector has eigenvalue (L - 1)/(L + 1), the largest below 1. p = 100: 0.25."""
    exponential = Exponential().build(nodes, seed=0)
    assert exponential.spectral_gap == pytest.approx(2 / (ceil(log2(nodes)) + 1), abs=ROUNDING)


def test_gap_of_a_static_exponential_graph_of_odd_size():
    """p = 7: 1 - |1 + w + w^2 + w^4| / 4 with w the seventh root of unity = 1 - sqrt(2) / 4 = 0.646."""
    assert Exponential().build(7, seed=0).spectral_gap == pytest.approx(1 - sqrt(2) / 4, abs=ROUNDING)


def test_exponential_graphs_are_directed():
    """i sends to i + 2^k and receives from i - 2^k; the one-peer graph takes the powers in turn."""
    exponential, one_peer = Exponential().build(8, seed=0), OnePeerExponential().build(8, seed=0)
    assert (exponential.targets(0), exponential.sources(0)) == ((1, 2, 4), (4, 6, 7))
    assert [one_peer.targets(0, step) for step in range(4)] == [(1,), (2,), (4,), (1,)]
    assert [one_peer.sources(0, step) for step in range(4)] == [(7,), (6,), (4,), (7,)]
    assert one_peer.neighbours(0) == (4, 6, 7)


@each_row("nodes", range(2, 34))
def test_l_one_peer_steps_average_exactly_if_and_only_if_nodes_is_a_power_of_two(nodes: int):
    """The product of L = ceil(log2 p) consecutive W is 11'/p iff p = 2^L, from any step on, without rounding."""
    topology = OnePeerExponential().build(nodes, seed=0)
    cycle = len(topology.rows)
    assert cycle == ceil(log2(nodes))
    for start in range(cycle):
        product = np.linalg.multi_dot(
            [np.eye(nodes), *(topology.matrix(start + k) for k in range(cycle)), np.eye(nodes)]
        )
        assert (product == 1 / nodes).all() == (nodes == 2**cycle)
    assert (topology.spectral_gap == 1) == (nodes == 2**cycle)


def test_a_cycle_of_the_one_peer_graph_misses_the_mean_of_six_by_a_twelfth():
    """p = 6: of the 8 walks of L = 3 steps two end at the same node twice, 2/8 - 1/6 = 1/12 = 0.083."""
    topology = OnePeerExponential().build(6, seed=0)
    product = topology.matrix(2) @ topology.matrix(1) @ topology.matrix(0)
    assert np.abs(product - 1 / 6).max() == pytest.approx(1 / 12, abs=ROUNDING)


@each_row("config", [Ring(), Star(), Exponential(), OnePeerExponential()])
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


@each_row("config", [Ring(), Complete(), Exponential(), OnePeerExponential()])
@each_row("nodes", [5, 6, 8, 12])
def test_the_gap_of_circulant_graphs_does_not_depend_on_how_nodes_are_numbered(config: TopologyConfig, nodes: int):
    """Renumbered, W is circulant no more and its singular values are computed densely: same gap, whichever the way."""
    topology = config.build(nodes, seed=0)
    new = np.random.default_rng(0).permutation(nodes)
    rows = tuple(
        tuple({int(j): w[i, j] for j in range(nodes) if w[i, j] > 0} for i in range(nodes))
        for w in (topology.matrix(step)[np.ix_(new, new)] for step in range(len(topology.rows)))
    )
    assert Topology("renumbered", nodes, rows).spectral_gap == pytest.approx(topology.spectral_gap, abs=ROUNDING)


# --- shares that are pushed, in graphs of the user's


def test_the_seed_draws_the_same_random_graph_in_every_process():
    """As it was drawn when this was written."""
    drawn = [(2, 3, 4), (3, 5, 7), (0, 5, 6), (0, 1, 4), (0, 3, 7), (1, 2, 6), (2, 5, 7), (1, 4, 6)]
    assert [RandomRegular().build(8, seed=5).neighbours(i) for i in range(8)] == drawn


def test_random_regular_graphs_mix_as_published():
    """Degree 3, 32 nodes: gap 0.088 on average over 30 draws; the draws' standard error is below 0.004."""
    gaps = [RandomRegular(degree=3).build(32, seed).spectral_gap for seed in range(30)]
    assert np.mean(gaps) == pytest.approx(0.088, abs=0.012)


def test_random_regular_graphs_are_connected_regular_and_evenly_weighted():
    """Every row has degree + 1 weights 1/(degree+1); degree 2 takes several draws until connected."""
    for degree, nodes in ((2, 64), (3, 10), (4, 9)):
        topology = RandomRegular(degree).build(nodes, seed=3)
        assert all(list(row.values()) == [1 / (degree + 1)] * (degree + 1) for row in topology.rows[0])
        assert nx.is_connected(nx.Graph((i, j) for i in range(nodes) for j in topology.neighbours(i)))


def test_the_seed_determines_the_random_graph():
    """The same seed gives the same graph, another one another; the topology's own seed wins over the run's."""
    assert RandomRegular().build(32, seed=5) == RandomRegular().build(32, seed=5)
    assert RandomRegular().build(32, seed=5) != RandomRegular().build(32, seed=6)
    assert RandomRegular(seed=5).build(32, seed=6) == RandomRegular().build(32, seed=5)


# --- graphs from files


@given(graph=connected_graphs(), weights=st.sampled_from(["metropolis", "uniform"]))
def test_any_connected_graph_from_a_file_is_symmetric_and_doubly_stochastic(graph: nx.Graph, weights: str):
    """W is zero off the graph, has the published weights on it, and 1 - second largest |eigenvalue| > 0 as its gap."""
    with tempfile.TemporaryDirectory() as folder:
        topology = File(write_edges(Path(folder), graph.edges), weights).build(len(graph), seed=0)
    assert_doubly_stochastic(topology)
    assert (topology.matrix() == topology.matrix().T).all()
    largest = max(d for _, d in graph.degree)
    for i in graph:
        assert set(topology.neighbours(i)) == set(graph[i])
        for j in graph[i]:
            degree = largest if weights == "uniform" else max(graph.degree[i], graph.degree[j])
            assert topology.mixing_row(i)[j] == 1 / (1 + degree)
    if len(graph) > 1:
        assert topology.spectral_gap == pytest.approx(1 - sorted(np.abs(eigenvalues(topology)))[-2], abs=ROUNDING)
    assert topology.spectral_gap > 1e-4


@given(graph=connected_graphs())
def test_edges_once_edges_twice_and_a_matrix_describe_the_same_graph(graph: nx.Graph):
    """The three accepted listings of a graph give equal topologies."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        once = File(write_edges(folder, graph.edges)).build(len(graph), seed=0)
        twice = File(write_edges(folder, graph.to_directed().edges)).build(len(graph), seed=0)
        assert once == twice == File(write_matrix(folder, graph)).build(len(graph), seed=0)


@given(st.integers(3, 12), st.sampled_from(["metropolis", "uniform"]))
def test_a_ring_from_a_file_is_the_ring(nodes: int, weights: str):
    """On a regular graph both weights are 1/(degree+1), to the last bit."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_edges(Path(folder), nx.cycle_graph(nodes).edges)
        assert File(path, weights).build(nodes, seed=0).rows == Ring().build(nodes, seed=0).rows


def test_comments_and_empty_lines_are_no_edges(tmp_path: Path):
    """`#` to the end of the line is a comment, in windows line ends and with a byte-order mark too."""
    path = tmp_path / "graph.txt"
    path.write_bytes(b"\xef\xbb\xbf# a path\r\n\r\n0 1  # first\r\n  1\t2\r\n")
    assert File(str(path)).build(3, seed=0).neighbours(1) == (0, 2)


def irregular(folder: Path) -> Topology:
    """From 0 to 1 and 2, from both to 3, from there to 0."""
    path = write_edges(folder, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 0)])
    return File(path, "push").build(4, seed=0)


def test_pushed_shares_are_equal_and_columns_sum_to_one(tmp_path: Path):
    """Edges point from sender to receiver, and a list and a matrix of them, which is not symmetric, are one graph."""
    topology, third = irregular(tmp_path), 1 / 3
    expected = [[third, 0, 0, 1 / 2], [third, 1 / 2, 0, 0], [third, 0, 1 / 2, 0], [0, 1 / 2, 1 / 2, 1 / 2]]
    assert topology.matrix().tolist() == expected
    assert (topology.sources(3), topology.targets(0)) == ((1, 2), (1, 2))
    (tmp_path / "matrix.txt").write_text("0 1 1 0\n0 0 0 1\n0 0 0 1\n1 0 0 0\n")
    assert File(str(tmp_path / "matrix.txt"), "push").build(4, seed=0) == topology


def test_push_sum_contracts_by_the_gap_in_the_long_run(tmp_path: Path):
    """By the second largest |eigenvalue| of P in a step, as measured on the ratios."""
    topology, x, w = irregular(), np.random.default_rng(0).standard_normal(4), np.ones(4)
    spreads = []
    for _ in range(40):
        x, w = topology.matrix() @ x, topology.matrix() @ w
        spreads.append(np.ptp(x / w))
    rate = (spreads[-1] / spreads[19]) ** (1 / 20)
    assert rate == pytest.approx(1 - topology.spectral_gap, rel=0.03)


# --- errors

SUMS = "algo=a needs a topology with rows and columns that sum to 1"


def message(build: Callable[[], object]) -> str:
    with pytest.raises(ValueError, match="got") as caught:
        build()
    return str(caught.value)


@each_row(
    ("build", "text"),
    [
        (lambda: Hypercube().build(12, 0), "topology=hypercube needs nodes to be a power of two, got nodes=12"),
        (
            lambda: Torus().build(7, 0),
            "topology=torus needs nodes = rows x columns, both >= 2, got nodes=7",
        ),
        (
            lambda: irregular().check_doubly_stochastic("a"),
            f"{SUMS}, got irregular, where node 3 takes in more than others",
        ),
        (lambda: RandomRegular(4).build(4, 0), "degree must be < nodes, got 4 with nodes=4"),
        (lambda: RandomRegular(3).build(7, 0), "degree must be even for an odd number of nodes, got 3 with nodes=7"),
        (lambda: RandomRegular(1).build(8, 0), "degree must be >= 2 for a connected graph, got 1 with nodes=8"),
        (lambda: File("x", weights="max"), "weights must be metropolis, uniform or push, got max"),
        (lambda: File("no.txt").build(4, 0), "path must be a readable file, got no.txt (No such file or directory)"),
    ],
)
def test_impossible_choices_name_rule_and_value(build: Callable[[], object], text: str):
    """One line; it begins with the field at fault, or says which topology asks what of the number of nodes."""
    assert message(build) == text


def test_a_random_graph_that_is_never_connected_ends_in_an_error(monkeypatch: pytest.MonkeyPatch):
    """The draws are bounded: 64 nodes of degree 2 with seed 0 are not connected at the first one."""
    monkeypatch.setattr("dsgd.topology.random_regular.DRAWS_UNTIL_CONNECTED", 1)
    text = "degree must give a connected graph in 1 draws, got 2 with nodes=64 seed=0"
    assert message(lambda: RandomRegular(2).build(64, 0)) == text


MATRIX_RULE = "path must hold edges 'i j' or 3 lines of 3 numbers 0 or 1 (nodes=3)"


@each_row(
    ("content", "text"),
    [
        ("0 1\n\n1 x\n", "path must hold whole numbers and # comments, got '1 x' (FILE, line 3)"),
        ("0 1\n# two\n1 2 0\n", "path must hold one edge 'i j' a line, got 3 numbers (FILE, line 3)"),
        ("0 1\n1 3\n", "path must name nodes 0 to 2 (nodes=3), got edge 1 3 (FILE, line 2)"),
        ("0 1\n1 1\n1 2\n", "path must have no self loops, got edge 1 1 (FILE, line 2)"),
        ("0 1\n1 2\n0 1\n", "path must list an edge once, got 0 1 again (FILE, line 3)"),
        ("0 1\n1 2\n1 0\n", "path must be symmetric, got edge 1 2 without 2 1 (FILE, line 2)"),
        ("0 1\n", "path must give a connected graph of nodes=3, got node 2 cut off from node 0 (FILE)"),
        (
            "0 1 1\n1 0 1\n0 1 0\n",
            "path must be symmetric, got 0 in row 2 column 0 and 1 in row 0 column 2 (FILE, line 3)",
        ),
        ("0 1 1\n1 0\n1 1 0\n", f"{MATRIX_RULE}, got 2 numbers (FILE, line 2)"),
        ("0 1 1\n1 0 2\n1 2 0\n", f"{MATRIX_RULE}, got 2 (FILE, line 2)"),
        (b"\xff\xfe0\x00", "path must be a text file in UTF-8, got FILE"),
    ],
)
def test_a_bad_graph_file_is_refused_with_file_and_line(content: str | bytes, text: str, tmp_path: Path):
    """One line that starts with the key `path`, names the rule and what stands where."""
    path = tmp_path / "graph.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert message(lambda: File(str(path)).build(3, seed=0)) == text.replace("FILE", str(path))
