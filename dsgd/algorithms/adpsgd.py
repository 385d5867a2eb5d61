"""AD-PSGD: pairs of workers average while they compute gradients, and no worker waits for a peer or the network.

Reference: Lian, Zhang, Zhang, Liu 2018, arXiv 1710.06952.

    gradients, in every worker i:                          x_i   parameters of worker i, [d]
        g = g(a copy of x_i);  x_i = x_i - lr g            g     stochastic gradient, [d]
    averages, concurrently, in every active worker i:      j     a random passive worker, or such a neighbour of i
        atomically:  x_i = x_j = (x_i + x_j) / 2
    which without a lock is:
        i:  v = x_i;  send v                               v     x_i when it was sent, [d]
        j:  y = x_j;  x_j = x_j + (v - y) / 2;  send y     y     x_j when v arrived, [d]
        i:  x_i = x_i + (y - v) / 2

Half of the workers are active and begin averages; the others are passive and answer at any time. An average keeps the
sum of the x_i, even if i has made a step since it sent v. If an evaluation or the end falls between the two halves of
an average, the mean lacks (y - v) / (2 p).

Differences from the paper: while y is in flight, j makes steps and answers other workers. So no graph can deadlock. But
two workers that asked each other at the same time would swap their vectors instead of averaging them. Therefore the
graph is bipartite, as in the paper. An average begins with a gradient, and is skipped if the previous average is still
in flight. step() may add local momentum, which is not averaged.
Cost per active worker: every step one message of N bytes; passive workers answer with the same number. Waits: for
nothing.
A worker that fails (`cluster.failures`): averages with it are skipped. It returns with the parameters of a random
peer, so the sum of the x_i changes.
Output model: the mean of the x_i. One worker: exactly SGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsgd.topology import Topology
from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ADPSGD(Algorithm):
    topology: Topology  # used with peers=topology
    peers: str = "uniform"  # uniform: any passive worker | topology: a neighbour in the graph

    def __post_init__(self) -> None:
        if self.peers not in ("uniform", "topology"):
            raise ValueError(f"peers must be uniform or topology, got {self.peers!r}")
        if self.peers == "topology" and self.topology.sides is None:
            name, nodes = self.topology.name, self.topology.nodes
            raise ValueError(f"peers=topology must have a bipartite graph, got topology={name} with nodes={nodes}")

    @property
    def conserves(self) -> str:
        return "workers"

    def passive(self, worker: Worker) -> Sequence[int]:
        """Return the peers that a worker may ask for an average: none for a passive worker."""
        if self.peers == "topology":
            assert self.topology.sides is not None
            return () if self.topology.sides[worker.rank] else self.topology.neighbours(worker.rank)
        return () if worker.rank % 2 else range(1, worker.nodes, 2)

    def answer(self, worker: Worker, v: Tensor) -> Tensor:
        y = worker.x.clone()
        worker.x.lerp_(v, 0.5)
        return y

    async def train(self, worker: Worker) -> None:
        x, passive = worker.x, self.passive(worker)
        averaging = False

        async def average(peer: int) -> None:
            nonlocal averaging
            averaging = True
            v = x.clone()
            y = await worker.ask(peer, v)
            if y is not None:  # a dead peer has nothing to average with
                x.add_(y - v, alpha=0.5)
            averaging = False

        last = None
        while not worker.done:
            worker.publish()  # for a worker that begins late
            if passive and not averaging:
                last = worker.start(average(passive[int(worker.rng.integers(len(passive)))]))
            worker.step(await worker.gradient())
        if last is not None:  # the peer may have made its half of the average
            await last
