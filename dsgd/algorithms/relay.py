"""RelaySGD: sums of models are relayed along a tree, so that every model reaches all workers with the same weight.

Reference: Vogels, He, Koloskova, Lin, Karimireddy, Stich, Jaggi 2021, arXiv 2110.04175.

    each step of worker i:                                        x_i   parameters of worker i, [d]
        x_i = x_i - lr g                                          g     gradient of f_i at x_i, [d]
        send to every neighbour j  m_ij = x_i + sum of m_ki       m_ij  sum of the models on i's side of edge ij, [d]
                                   n_ij = 1 + sum of n_ki         n_ij  number of models in m_ij
            sums over the other neighbours k != j, received in the step before, at first 0
        x_i = ((p - n) x_i + sum of m_ji) / p                     n     sum of n_ji over all neighbours j,
                                                                        received in this step

After as many steps as the diameter of the tree, x_i is the mean of all workers' models, with worker j's model of
dist(i, j) - 1 steps ago. So every worker converges to the common minimiser, at a constant rate and for any data. Two
workers are synchronous SGD. With a larger diameter, models arrive later: more steps are needed, and local momentum is
equally late.

Models that cannot have arrived yet are replaced by the worker's own x_i, as in the authors' README; their program uses
the initial model. Differences from the paper: step() may add local momentum, as in the authors' program. One tree
carries the whole vector, instead of two trees with half a vector each.
Cost per step and worker: deg(i) messages of N bytes, with one number more each. Waits for its neighbours' messages of
the present step. Time of a step: t + a + deg N / B. A worker keeps one vector for each neighbour.
A worker that fails (`cluster.failures`): its neighbours wait until it is back, then theirs, one hop a step.
Output model: the mean of the x_i. One worker: exactly SGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

from dsgd.topology import Topology
from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Relay(Algorithm):
    topology: Topology  # a tree; its mixing weights do not count
    lockstep: ClassVar[bool] = True

    @property
    def keeps(self) -> int:
        return max(len(self.topology.neighbours(rank)) for rank in range(self.topology.nodes))

    def check(self, nodes: int, lr: float, momentum: float) -> None:
        if not self.topology.is_tree:
            rule = "algo=relay needs a tree: topology=chain, binary_tree or star"
            edges = sum(len(self.topology.neighbours(rank)) for rank in range(nodes)) // 2
            raise ValueError(f"{rule}, got topology={self.topology.name} with {edges} edges among nodes={nodes}")

    async def train(self, worker: Worker) -> None:
        import torch

        x, unit = worker.x, worker.x.new_ones(1)
        neighbours = self.topology.neighbours(worker.rank)  # ascending: every engine must add in the same order
        sums = [worker.keep(f"sum from {j}") for j in neighbours]
        counts = [unit * self.models_from(j, worker) for j in neighbours]
        while not worker.done:
            worker.step(await worker.gradient(x))
            to_each = zip(_without_each(x, sums), _without_each(unit, counts), strict=True)
            sent = dict(zip(neighbours, map(torch.cat, to_each), strict=True))
            received = await worker.exchange(sent, neighbours)
            counts = [received[j][-1:].clone() for j in neighbours]
            x.mul_(worker.nodes - sum(counts))
            for j, kept in zip(neighbours, sums, strict=True):
                x.add_(kept.copy_(received[j][:-1]))
            x.div_(worker.nodes)

    def models_from(self, j: int, worker: Worker) -> int:
        """Return the number of models in the last message from neighbour j: the workers on j's side at most
        `worker.steps` hops away. At the start it is 0."""
        reached, ring = {worker.rank}, [j]
        for _ in range(worker.steps):
            reached.update(ring)
            ring = [k for i in ring for k in self.topology.neighbours(i) if k not in reached]
            if not ring:
                break
        return len(reached) - 1


def _without_each(local: Tensor, parts: list[Tensor]) -> list[Tensor]:
    """Return for each of the parts the sum of `local` and all other parts."""
    if not parts:
        return []
    before = accumulate(parts[:-1], initial=local)
    behind = [*accumulate(reversed(parts[1:]), initial=local * 0)]
    return [a + b for a, b in zip(before, reversed(behind), strict=True)]
