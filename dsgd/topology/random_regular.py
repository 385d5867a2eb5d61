"""Graphs that are drawn at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsgd.topology.mixing import MOST_WEIGHTS, Topology, circulant, of_graph

# Connected draws are nearly certain from degree 3 on; of degree 2 and 1,024 nodes about one in 30 is connected.
DRAWS_UNTIL_CONNECTED = 1000


@dataclass(frozen=True)
class RandomRegular:
    """A connected graph drawn among those in which every node has `degree` neighbours, 1/(degree+1) each.

    degree: degree * nodes must be even. seed: of the graph alone; null takes the run's.
    Gap for many nodes 1 - (1 + 2 sqrt(degree - 1)) / (degree + 1): 0.043 for degree 3; about 0.09 at 32 nodes."""

    degree: int = 3
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.degree < 1:
            raise ValueError(f"degree must be >= 1, got {self.degree}")
        if self.seed is not None and self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")

    def build(self, nodes: int, seed: int) -> Topology:
        import networkx as nx

        if nodes == 1:
            return Topology("random_regular", nodes, (circulant(nodes, (0,)),))
        given = f"{self.degree} with nodes={nodes}"
        if self.degree >= nodes:
            raise ValueError(f"degree must be < nodes, got {given}")
        if self.degree * nodes > MOST_WEIGHTS:
            raise ValueError(f"degree must be <= {MOST_WEIGHTS} / nodes, got {given}")
        if self.degree * nodes % 2:
            raise ValueError(f"degree must be even for an odd number of nodes, got {given}")
        if self.degree == 1 and nodes > 2:
            raise ValueError(f"degree must be >= 2 for a connected graph, got {given}")
        seed = seed if self.seed is None else self.seed
        for draw in range(DRAWS_UNTIL_CONNECTED):
            rng = np.random.default_rng([seed, *b"topology", draw])
            graph = nx.random_regular_graph(self.degree, nodes, seed=int(rng.integers(2**63)))
            if nx.is_connected(graph):
                return Topology("random_regular", nodes, (of_graph(graph),))
        raise ValueError(
            f"degree must give a connected graph in {DRAWS_UNTIL_CONNECTED} draws, got {given} seed={seed}"
        )
