"""Graphs of workers: whose vectors a worker averages, and with what weights.

A `Topology` is what algorithms see: who sends to whom, and mixing matrices. The other dataclasses are the choices of
`conf/topology/`, each with `build(nodes, seed)`; their docstrings give the eigenvalues and gap of the mixing matrix W
for p nodes. One node is always that node alone. Importing this package costs numpy only: networkx is imported where it
makes a graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import isqrt
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import networkx as nx


MOST_DENSE = 1024  # largest number of nodes whose dense matrix gets eigenvalues in a summary: half a second
MOST_WEIGHTS = 2**24  # nonzero weights of one mixing matrix, each a float in a mapping


Row = Mapping[int, float]
Peers = tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """A cycle of mixing matrices over `nodes` nodes; step t uses `rows[t % len(rows)]`. All choices of conf/topology
    are doubly stochastic. For algo=sgp columns must sum to 1, rows need not.

    rows: rows[k][i] = {j: W_ij, the weight of x_j in the average of i}, ascending j, i included."""

    name: str
    nodes: int
    rows: tuple[tuple[Row, ...], ...]

    def __post_init__(self) -> None:
        weights = max(sum(map(len, rows)) for rows in self.rows)
        if weights > MOST_WEIGHTS:
            rule = f"topology must have at most {MOST_WEIGHTS} weights"
            raise ValueError(f"{rule}, got {weights} of {self.name} with nodes={self.nodes}")

    def mixing_row(self, rank: int, step: int = 0) -> Row:
        """Row `rank` of W at this step: {j: W[rank, j]}, ascending j, `rank` included."""
        return self.rows[step % len(self.rows)][rank]

    def sources(self, rank: int, step: int = 0) -> Peers:
        """Return the nodes that `rank` receives from at this step, without itself, ordered by (peer - rank) mod nodes.

        That order keeps the nodes of a circulant graph from all turning to the same peer first."""
        return self._sources[step % len(self.rows)][rank]

    def targets(self, rank: int, step: int = 0) -> Peers:
        """Return the nodes that `rank` sends to at this step, ordered likewise; of an undirected graph the same."""
        return self._targets[step % len(self.rows)][rank]

    def neighbours(self, rank: int) -> Peers:
        """Return the nodes that `rank` receives from at any step of the cycle, ascending."""
        return self._neighbours[rank]

    @cached_property
    def sides(self) -> tuple[bool, ...] | None:
        """Return the side of each node in a bipartite graph, False for node 0's side. Every edge joins the two sides.
        None if the graph is not bipartite."""
        side, reached = {0: False}, [0]
        while reached:
            i = reached.pop()
            for j in self.neighbours(i):
                if j not in side:
                    side[j] = not side[i]
                    reached.append(j)
                elif side[j] == side[i]:
                    return None
        return tuple(side[i] for i in range(self.nodes))

    def matrix(self, step: int = 0) -> np.ndarray:
        """W at this step, dense, [nodes, nodes], float64."""
        dense = np.zeros((self.nodes, self.nodes))
        for i, row in enumerate(self.rows[step % len(self.rows)]):
            dense[i, list(row)] = list(row.values())
        return dense

    def check_doubly_stochastic(self, algo: str) -> None:
        """Raise ValueError if the weights into a node do not sum to 1 in some step, which this algorithm needs."""
        if (node := self._unbalanced) is not None:
            rule = f"algo={algo} needs a topology with rows and columns that sum to 1"
            raise ValueError(f"{rule}, got {self.name}, where node {node} takes in more than others")

    @cached_property
    def _unbalanced(self) -> int | None:
        """Return the node with the largest sum of incoming weights; None if all sums are 1."""
        taken = [(sum(row.values()), i) for rows in self.rows for i, row in enumerate(rows)]
        return None if all(abs(total - 1) < 1e-9 for total, _ in taken) else max(taken)[1]

    @cached_property
    def is_symmetric(self) -> bool:
        """Return whether W is symmetric, and the same at every step."""
        rows = self.rows[0]
        return len(self.rows) == 1 and all(rows[j].get(i) == w for i, row in enumerate(rows) for j, w in row.items())

    @cached_property
    def is_tree(self) -> bool:
        """Return whether the graph is undirected, the same at every step, connected, and without a cycle."""
        if not self.is_symmetric or sum(map(len, self._neighbours)) != 2 * (self.nodes - 1):
            return False
        reached, frontier = {0}, [0]
        while frontier:
            new = set(self._neighbours[frontier.pop()]) - reached
            reached |= new
            frontier += new
        return len(reached) == self.nodes

    @cached_property
    def least_eigenvalue(self) -> float:
        """Return the smallest eigenvalue of a symmetric W that does not change, from -1 to 1.

        O(p log p) for circulant graphs, O(p^3) for others."""
        if _is_circulant(self.rows[0]):
            return float(np.fft.fft([self.rows[0][0].get(j, 0.0) for j in range(self.nodes)]).real.min())
        return float(np.linalg.eigvalsh(self.matrix())[0])

    @cached_property
    def spectral_gap(self) -> float:
        """1 - the worst factor of the nodes' distance from their mean in a step; from 0 to 1.

        The factor is s ** (1 / len(rows)), where s is the largest singular value of the product of one cycle of
        (W - 11'/p). For one symmetric W, s is its second largest |eigenvalue|, the usual definition. Eigenvalues of
        other W need not bound a step, and the steps of a time-varying graph contract only together. If W is not doubly
        stochastic, s is the second largest |eigenvalue|, the asymptotic contraction of push-sum. Computed on first use:
        O(p log p) for circulant graphs (ring, complete, both exponentials), O(p^3) for others."""
        factor = self._contraction_of_a_cycle()
        if factor < self.nodes * np.finfo(float).eps:
            return 1.0  # an exact average but for rounding, which the root would blow up: (1e-16) ** (1 / 10) = 0.025
        return max(0.0, 1 - factor ** (1 / len(self.rows)))

    @property
    def summarised_gap(self) -> float | None:
        """Return the spectral gap for summaries: None if it would take longer than many runs."""
        quick = self.nodes <= MOST_DENSE or all(map(_is_circulant, self.rows))
        return self.spectral_gap if quick else None

    def _contraction_of_a_cycle(self) -> float:
        if all(_is_circulant(rows) for rows in self.rows):
            # The Fourier vectors are orthogonal eigenvectors of all W at once, the first one is the mean.
            spectra = [np.fft.fft([rows[0].get(j, 0.0) for j in range(self.nodes)]) for rows in self.rows]
            return float(np.abs(np.prod(spectra, axis=0))[1:].max(initial=0.0))
        cycle = np.eye(self.nodes)
        for step in range(len(self.rows)):
            cycle = self.matrix(step) @ cycle
        if self._unbalanced is not None:
            return float(np.sort(np.abs(np.linalg.eigvals(cycle)))[-2])
        # (W_k - 11'/p) ... (W_1 - 11'/p) = W_k ... W_1 - 11'/p, because every W is doubly stochastic.
        return float(np.linalg.norm(cycle - 1 / self.nodes, ord=2))

    @cached_property
    def _sources(self) -> tuple[tuple[Peers, ...], ...]:
        return tuple(tuple(self._peers(i, row) for i, row in enumerate(rows)) for rows in self.rows)

    @cached_property
    def _targets(self) -> tuple[tuple[Peers, ...], ...]:
        return tuple(tuple(self._peers(j, to) for j, to in enumerate(_columns(rows))) for rows in self.rows)

    @cached_property
    def _neighbours(self) -> tuple[Peers, ...]:
        return tuple(tuple(sorted(set().union(*by_step))) for by_step in zip(*self._sources, strict=True))

    def _peers(self, rank: int, row: Iterable[int]) -> Peers:
        return tuple(sorted((j for j in row if j != rank), key=lambda j: (j - rank) % self.nodes))


def _columns(rows: tuple[Row, ...]) -> list[list[int]]:
    receivers: list[list[int]] = [[] for _ in rows]
    for i, row in enumerate(rows):
        for j in row:
            receivers[j].append(i)
    return receivers


def _is_circulant(rows: tuple[Row, ...]) -> bool:
    first, nodes = rows[0], len(rows)
    return all(row == {(i + j) % nodes: w for j, w in first.items()} for i, row in enumerate(rows))


def circulant(nodes: int, offsets: Iterable[int]) -> tuple[Row, ...]:
    """Return rows in which i takes in x_(i - offset) for every distinct offset, with equal weights."""
    distinct = {offset % nodes for offset in offsets}
    return tuple(dict.fromkeys(sorted((i - k) % nodes for k in distinct), 1 / len(distinct)) for i in range(nodes))


def symmetric(neighbours: Sequence[Collection[int]]) -> tuple[Row, ...]:
    """Return symmetric, doubly stochastic rows for an undirected graph without self loops: Metropolis weights.

    neighbours: the neighbours of every node."""
    rows = []
    for i, of_i in enumerate(neighbours):
        divisor = {j: 1 + max(len(of_i), len(neighbours[j])) for j in of_i}
        # in rationals, so that the diagonal of a ring is the float 1/3 and not 1 - 1/3 - 1/3
        diagonal = 1 - sum(Fraction(count, d) for d, count in Counter(divisor.values()).items())
        rows.append(dict(sorted({i: float(diagonal), **{j: 1 / d for j, d in divisor.items()}}.items())))
    return tuple(rows)


def of_graph(graph: nx.Graph) -> tuple[Row, ...]:
    """Return the same for a graph on 0 to p - 1."""
    return symmetric([list(graph[i]) for i in range(len(graph))])


@dataclass(frozen=True)
class Ring:
    """Each node and its two neighbours, 1/3 each; of two nodes 1/2 each, the one neighbour counts once.

    Degree 2. Eigenvalues (1 + 2 cos(2 pi k / p)) / 3; gap (2/3)(1 - cos(2 pi / p)) for p >= 4: 0.195 at 8 nodes."""

    def build(self, nodes: int, seed: int) -> Topology:
        return Topology("ring", nodes, (circulant(nodes, (-1, 0, 1)),))


@dataclass(frozen=True)
class Complete:
    """All nodes take the mean of all nodes: W = 11'/p, degree p - 1, gap 1."""

    def build(self, nodes: int, seed: int) -> Topology:
        row = dict.fromkeys(range(nodes), 1 / nodes)
        return Topology("complete", nodes, ((row,) * nodes,))  # one row for all: p weights in memory, not p * p


@dataclass(frozen=True)
class Star:
    """Node 0 is the hub; 1/p on every edge, as every edge ends at the hub.

    Degree p - 1 at the hub, whose port saturates like a server's, 1 elsewhere. Eigenvalues 1, 1 - 1/p, 0; gap 1/p."""

    def build(self, nodes: int, seed: int) -> Topology:
        return Topology("star", nodes, (symmetric([range(1, nodes), *[(0,)] * (nodes - 1)]),))


@dataclass(frozen=True)
class Torus:
    """A grid of rows x columns that wraps around, node r * columns + c at (r, c); a side of 2 has one neighbour there.

    It is the most nearly square grid, and refuses a prime number of nodes above 2.
    Sides >= 3: degree 4, 1/5 each, eigenvalues (1 + 2 cos(2 pi i / rows) + 2 cos(2 pi j / columns)) / 5; r x r with
    r >= 4 has gap (2/5)(1 - cos(2 pi / r)): 0.4 at 4 x 4, 0.0764 at 10 x 10."""

    def build(self, nodes: int, seed: int) -> Topology:
        import networkx as nx

        rows = next(r for r in range(isqrt(nodes), 0, -1) if nodes % r == 0)
        if rows == 1 and nodes > 2:
            raise ValueError(f"topology=torus needs nodes = rows x columns, both >= 2, got nodes={nodes}")
        graph = nx.grid_2d_graph(rows, nodes // rows, periodic=True)
        return Topology("torus", nodes, (of_graph(nx.convert_node_labels_to_integers(graph, ordering="sorted")),))


@dataclass(frozen=True)
class Hypercube:
    """Neighbours are the nodes whose numbers differ in one bit; p = 2^q, degree q, 1/(q+1) each.

    Eigenvalues 1 - 2k/(q+1); gap 2/(q+1) for q >= 1: 0.5 at 8 nodes, 1/3 at 32."""

    def build(self, nodes: int, seed: int) -> Topology:
        import networkx as nx

        if nodes & (nodes - 1):
            raise ValueError(f"topology=hypercube needs nodes to be a power of two, got nodes={nodes}")
        # networkx's cube of dimension 0 has no node
        graph = nx.hypercube_graph(nodes.bit_length() - 1) if nodes > 1 else nx.empty_graph(1)
        return Topology("hypercube", nodes, (of_graph(nx.convert_node_labels_to_integers(graph, ordering="sorted")),))


@dataclass(frozen=True)
class Exponential:
    """Static exponential graph, directed: i sends to i + 2^k for every k < L = ceil(log2 p), all weights 1/(L+1).

    Degree L; gap 2/(L+1) for even p: 0.5 at 8 nodes, 1/3 at 32. `OnePeerExponential` uses one of the L edges a step."""

    def build(self, nodes: int, seed: int) -> Topology:
        return Topology("exponential", nodes, (circulant(nodes, (0, *_powers_of_two(nodes))),))


@dataclass(frozen=True)
class OnePeerExponential:
    """One-peer exponential graph, time-varying, directed: at step t, i sends to i + 2^(t mod L), L = ceil(log2 p).

    W_t = (I + P^(2^(t mod L))) / 2 with P the cyclic shift; degree 1. L consecutive steps multiply to 11'/p exactly
    if and only if p = 2^L, where the gap is therefore 1."""

    def build(self, nodes: int, seed: int) -> Topology:
        offsets = _powers_of_two(nodes) or (0,)
        return Topology("one_peer_exponential", nodes, tuple(circulant(nodes, (0, offset)) for offset in offsets))


def _powers_of_two(nodes: int) -> Peers:
    return tuple(1 << k for k in range((nodes - 1).bit_length()))


@dataclass(frozen=True)
class Chain:
    """Node i is joined to i - 1 and i + 1, 1/3 on every edge; of two nodes 1/2.

    Degree 2, at the ends 1; diameter p - 1. Eigenvalues (1 + 2 cos(pi k / p)) / 3; gap (2/3)(1 - cos(pi / p)) for
    p >= 3: 0.0507 at 8 nodes."""

    def build(self, nodes: int, seed: int) -> Topology:
        return _tree("chain", [i - 1 for i in range(1, nodes)])


@dataclass(frozen=True)
class BinaryTree:
    """Node i is joined to i // 2: 0 has the one child 1, every other i at most 2 i and 2 i + 1. The tree of Vogels et
    al. 2021, with 2^q - 1 nodes below node 0 if p = 2^q.

    Degree at most 3; diameter about 2 log2 p: 4 at 8 nodes, 6 at 16. Metropolis weights; gap 0.067 at 8 nodes, 0.0242
    at 16."""

    def build(self, nodes: int, seed: int) -> Topology:
        return _tree("binary_tree", [i // 2 for i in range(1, nodes)])


def _tree(name: str, parents: list[int]) -> Topology:
    """Return the tree in which node i + 1 hangs on parents[i]."""
    neighbours: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for child, parent in enumerate(parents, 1):
        neighbours[child].append(parent)
        neighbours[parent].append(child)
    return Topology(name, len(neighbours), (symmetric(neighbours),))


class TopologyConfig(Protocol):
    """A choice of `conf/topology/`: makes the topology for a number of nodes."""

    def build(self, nodes: int, seed: int) -> Topology:
        """Return the topology over `nodes` >= 1 nodes. seed: the run's, for random graphs.

        Raises ValueError, one line, if the choice and the number of nodes do not fit."""
        ...
