"""Graphs of workers: whose vectors a worker averages, and with what weights.

A `Topology` is what algorithms see. The other dataclasses are the choices of `conf/topology/`, each with
`build(nodes, seed)`; their docstrings give the eigenvalues and gap of the mixing matrix W for p nodes. One node is
always that node alone. Importing this package costs numpy only: networkx is imported where it makes a graph.
"""

from __future__ import annotations

from typing import Protocol

from dsgd.topology.mixing import (
    BinaryTree,
    Chain,
    Complete,
    Exponential,
    Hypercube,
    OnePeerExponential,
    Ring,
    Star,
    Topology,
    Torus,
)

__all__ = [
    "BinaryTree",
    "Chain",
    "Complete",
    "Exponential",
    "Hypercube",
    "OnePeerExponential",
    "Ring",
    "Star",
    "Topology",
    "TopologyConfig",
    "Torus",
]


class TopologyConfig(Protocol):
    """A choice of `conf/topology/`: makes the topology for a number of nodes."""

    def build(self, nodes: int, seed: int) -> Topology:
        """Return the topology over `nodes` >= 1 nodes. seed: the run's, for random graphs.

        Raises ValueError, one line, where the choice and the number of nodes do not fit."""
        ...
