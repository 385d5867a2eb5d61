"""Decentralised parallel SGD (D-PSGD): average with graph neighbours while computing the next gradient.

Reference: Lian et al. 2017, arXiv 1705.09056, Algorithm 1. Not AD-PSGD (Lian et al. 2018), which is asynchronous.

    each step of worker i:
        send x_i to the neighbours of i                    x_i    parameters of worker i, [d]
        g   = gradient of f_i at x_i                       g      stochastic gradient at the un-mixed x_i, [d]
        m   = sum over j of W_ij x_j                       W_ij   mixing weights, rows and columns sum to 1
        x_i = m - lr g                                     lr     learning rate, gamma in the paper

With gradient=after, g is taken at m instead (combine, then adapt). With gradient=first, the step is made before the
exchange, x_i = sum over j of W_ij (x_j - lr g_j) (adapt, then combine). Both tolerate larger rates, and cannot overlap.
On a complete graph, gradient=first is synchronous SGD, because all workers start with the same x.

The published order diverges for lr h >= 1 + lambda_min(W) on curvature h (2/3 on a ring with even p, 1 on a complete
graph): that is the algorithm, not a defect.

Differences from the paper: step() may add local momentum, which is not mixed. Directed and time-varying graphs are
allowed: x_i goes to the targets of i and the mixture is of its sources.
Cost per step and worker: deg(i) messages, deg(i) N bytes sent. Waits for its neighbours' values of the present step, so
a delay travels one hop a step. Time of a step: max(t, a + deg N / B); with gradient=after|first t + a + deg N / B.
A worker that fails (`cluster.failures`): its neighbours wait until it is back, then theirs, one hop a step.
Output model: the mean of the x_i. One worker: exactly SGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dsgd.keys import check_options
from dsgd.topology import Topology
from dsgd.worker import Algorithm, Worker

ORDERS = ("before", "after", "first")


@dataclass(frozen=True)
class DPSGD(Algorithm):
    topology: Topology
    gradient: str = "before"  # before: at the un-mixed x, overlapping | after: at the mixture | first: and its step
    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self, gradient=ORDERS)

    @property
    def conserves(self) -> str:
        return "workers"

    def check(self, nodes: int, lr: float, momentum: float) -> None:
        self.topology.check_doubly_stochastic("dpsgd")

    async def train(self, worker: Worker) -> None:
        while not worker.done:
            await self.step(worker)

    async def step(self, worker: Worker) -> None:
        x = worker.x
        weight = self.topology.mixing_row(worker.rank, worker.steps)
        targets = self.topology.targets(worker.rank, worker.steps)
        sources = self.topology.sources(worker.rank, worker.steps)
        if self.gradient == "first":
            worker.step(await worker.gradient(x))
        sent = x.clone()  # a slow neighbour may read it after our step
        arriving = worker.start(worker.exchange(sent, targets, sources))
        g = await worker.gradient(sent) if self.gradient == "before" else None
        received = await arriving
        x.zero_()  # then x becomes m = sum over j of W_ij x_j
        for j, w_ij in weight.items():  # ascending j, i included: every engine must add in the same order
            x.add_(sent if j == worker.rank else received[j], alpha=w_ij)
        if self.gradient != "first":
            worker.step(await worker.gradient(x) if g is None else g)
