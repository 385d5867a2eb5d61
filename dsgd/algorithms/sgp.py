"""Stochastic gradient push (SGP): shares of the parameters, and of a weight, are pushed along a directed graph.

Reference: Assran, Loizou, Ballas, Rabbat 2019, arXiv 1811.10792; with overlap >= 1 their overlapped form (OSGP).

    each step of worker i:                                 x_i    numerator of worker i, [d]
        g = gradient of f_i at z_i = x_i / w_i             w_i    its push-sum weight, at first 1
        x_i = x_i - lr g                                   z_i    its parameters, [d]: worker.x between steps
        send P_ji (x_i, w_i) to every out-neighbour j      P_ji   1 / (1 + out-neighbours of i), as P_ii: columns of P
        (x_i, w_i) = P_ii (x_i, w_i) + what has arrived           sum to 1, rows need not

    with overlap, each round of worker i:
        send P_ji (x_i, w_i);  (x_i, w_i) = P_ii (x_i, w_i)
        overlap times:  g at z_i, what was sent has arrived by the last one and is added, x_i = x_i - lr g

Sums are conserved: of the x_i but for the steps, and of the w_i, counting what is under way. So the graph need not be
regular: a node that gets little has a small w_i, and z_i tends to the mean all the same. Where all nodes have equally
many in- and out-neighbours w_i is 1 whenever nothing is under way, and SGP is D-PSGD with gradient=first, with
overlap=1 the published one, gradient=before. The one-peer exponential graph of 2^L nodes is the paper's: one vector a
step, and the exact mean after L steps without gradients. While shares are under way a step moves z_i by lr g / w_i with
the small w_i that is left, so an overlap of several steps bears smaller rates only.

Differences from the paper: what arrives early waits for the end of its round, so that no result depends on who is
fast; the last round may be shorter. Time-varying graphs go on by one with every round. step() may add local momentum,
at x_i, as the authors have it.
Cost per round (overlap steps, at least one): as many messages of N bytes as out-neighbours, with one number more each.
Waits for the in-neighbours' messages of this round. Time of a step: t + a + deg N / B; of a round with overlap
max(overlap t, a + deg N / B). A peer that dies ends the run, as the mass that it held cannot be had back.
A worker that fails (`cluster.failures`): those that it sends to wait until it is back, with its weight.
Output model: the mean of the z_i, between which the sum of the x_i over that of the w_i lies; the same where all w_i
are equal. One worker: exactly SGD.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dsgd.keys import check_options
from dsgd.topology import Topology
from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SGP(Algorithm):
    topology: Topology  # who sends to whom; its mixing weights do not count
    overlap: int = 0  # steps that a message may take: 0 waits for it
    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self, overlap=">= 0")

    @property
    def cycle(self) -> int:
        return max(1, self.overlap)

    @property
    def conserves(self) -> str | None:
        return "workers" if self.overlap <= 1 else None  # later on there are steps with mass under way

    async def train(self, worker: Worker) -> None:
        x = worker.x
        w = worker.keep("weight", x.new_ones(x.shape))  # [d], all equal, as what is kept has d numbers
        while not worker.done:
            await (self.overlapped_round(worker, w) if self.overlap else self.step(worker, w))

    async def step(self, worker: Worker, w: Tensor) -> None:
        at = worker.steps
        self.descend(worker, w, await worker.gradient(worker.x))
        self.add(worker.x, w, await self.push(worker, w, at))

    async def overlapped_round(self, worker: Worker, w: Tensor) -> None:
        arriving = worker.start(self.push(worker, w, worker.steps // self.overlap))
        for left in reversed(range(self.overlap)):
            g = await worker.gradient(worker.x)
            if left == 0:
                self.add(worker.x, w, await arriving)
            self.descend(worker, w, g)
            if left > 0 and worker.done:  # the last round may be shorter
                self.add(worker.x, w, await arriving)
                break

    def descend(self, worker: Worker, w: Tensor, g: Tensor) -> None:
        """Make a step with g, on the numerator. Where w is 1, no bit is lost on the way there and back."""
        worker.x.mul_(w)
        worker.step(g)
        worker.x.div_(w)

    async def push(self, worker: Worker, w: Tensor, at: int) -> Mapping[int, Tensor]:
        """Send all shares but one's own in the graph of message `at`; z is then as before. Returns what arrives."""
        import torch

        targets, sources = self.topology.targets(worker.rank, at), self.topology.sources(worker.rank, at)
        w.div_(1 + len(targets))
        sent = torch.cat((worker.x * w, w[:1]))
        return await worker.exchange(sent, targets, sorted(sources))

    def add(self, z: Tensor, w: Tensor, received: Mapping[int, Tensor]) -> None:
        z.mul_(w)
        for share in received.values():  # ascending sources: every engine must add in the same order
            z.add_(share[:-1])
            w.add_(share[-1:])
        z.div_(w)
