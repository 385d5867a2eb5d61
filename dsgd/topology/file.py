"""Graphs from text files."""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.topology.graph_file import read_edges
from dsgd.topology.mixing import Row, Topology, of_graph


@dataclass(frozen=True)
class File:
    """A connected graph from a text file; `#` starts a comment, empty lines do not count.

    path: a list of edges, one `i j` a line, nodes 0 to p - 1, each edge once, or all of them in both directions; or a
    symmetric adjacency matrix, p lines of p numbers 0 or 1 (two numbers a line are always read as an edge).
    weights: `metropolis` puts 1 / (1 + max(deg_i, deg_j)) on edge ij; `uniform` 1 / (1 + the largest degree) on every
    edge, never more, so it usually mixes more slowly; equal on regular graphs. The rest of a row is on its diagonal.
    `push` is for algo=sgp: edges are directed, i sends to j, and the graph is strongly connected; a node gives equal
    parts of 1 to itself and to everybody whom it sends to, so columns sum to 1, and rows need not."""

    path: str
    weights: str = "metropolis"

    def __post_init__(self) -> None:
        if self.weights not in ("metropolis", "uniform", "push"):
            raise ValueError(f"weights must be metropolis, uniform or push, got {self.weights}")

    def build(self, nodes: int, seed: int) -> Topology:
        import networkx as nx

        if self.weights == "push":
            return Topology("file", nodes, (self._pushing(nodes),))
        graph = nx.empty_graph(nodes)
        graph.add_edges_from(read_edges(self.path, nodes))
        if cut_off := set(graph) - nx.node_connected_component(graph, 0):
            got = f"node {min(cut_off)} cut off from node 0 ({self.path})"
            raise ValueError(f"path must give a connected graph of nodes={nodes}, got {got}")
        return Topology("file", nodes, (of_graph(graph, self.weights),))

    def _pushing(self, nodes: int) -> tuple[Row, ...]:
        import networkx as nx

        graph = nx.empty_graph(nodes, create_using=nx.DiGraph)
        graph.add_edges_from(read_edges(self.path, nodes, directed=True))
        for way, reached in (("from node 0 to", nx.descendants(graph, 0)), ("to node 0 from", nx.ancestors(graph, 0))):
            if cut_off := set(graph) - reached - {0}:
                got = f"no way {way} node {min(cut_off)} ({self.path})"
                raise ValueError(f"path must give a strongly connected graph of nodes={nodes}, got {got}")
        share = {i: 1 / (1 + graph.out_degree(i)) for i in graph}
        return tuple({j: share[j] for j in sorted({i, *graph.predecessors(i)})} for i in range(nodes))
