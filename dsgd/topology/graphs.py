"""The choices of `conf/topology/` that are made by a formula: rings, grids, trees and their like."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from dsgd.topology.mixing import Peers, Topology, circulant, of_graph, symmetric


@dataclass(frozen=True)
class Ring:
    """Each node and its two neighbours, 1/3 each; of two nodes 1/2 each, the one neighbour counts once.

    Degree 2. Eigenvalues (1 + 2 cos(2 pi k / p)) / 3; gap (2/3)(1 - cos(2 pi / p)) for p >= 4: 0.195 at 8 nodes."""

    def build(self, nodes: int, seed: int) -> Topology:
        return Topology("ring", nodes, (circulant(nodes, (-1, 0, 1)),))


@dataclass(frozen=True)
class Complete:
    """Everybody takes the mean of everybody: W = 11'/p, degree p - 1, gap 1."""

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
        # networkx gives the cube of dimension 0 no node at all
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
