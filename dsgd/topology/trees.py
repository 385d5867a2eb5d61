"""Trees: between any two nodes there is one way, which `algo=relay` needs. A `Star` is one, too."""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.topology.mixing import Topology, symmetric


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
