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

The sum of the x_i is conserved except by steps, and the sum of the w_i always, shares in flight included. So the graph
need not be regular: a node that receives little has a small w_i, and z_i still tends to the mean. If all nodes have the
same number of in- and out-neighbours, w_i is 1 whenever nothing is in flight. Then SGP is D-PSGD with gradient=first,
and with overlap=1 the published D-PSGD, gradient=before. The paper uses the one-peer exponential graph of 2^L nodes:
one vector a step, and the exact mean after L steps without gradients. While shares are in flight, a step moves z_i by
lr g / w_i with the small remaining w_i, so an overlap of several steps needs smaller rates.

Differences from the paper: an early message waits for the end of its round, so no result depends on the workers' speed.
The last round may be shorter. Time-varying graphs change once a round. step() may add local momentum, at x_i, as in the
authors' program.
Cost per round (overlap steps, at least one): one message of N bytes and one number to each out-neighbour. Waits for the
in-neighbours' messages of this round. Time of a step: t + a + deg N / B; of a round with overlap max(overlap t, a + deg
N / B). A peer that dies ends the run, because its mass is lost.
A worker that fails (`cluster.failures`): its out-neighbours wait until it is back, with its weight.
Output model: the mean of the z_i. sum x_i / sum w_i lies between the z_i; it equals their mean if all w_i are equal.
One worker: exactly SGD.
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
    topology: Topology  # senders and receivers; its mixing weights are not used
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
        w = worker.keep("weight", x.new_ones(x.shape))  # [d], all equal, because kept vectors have d numbers
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
        """Send shares to the out-neighbours in the graph of message `at`, with z unchanged. Returns received shares."""
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
