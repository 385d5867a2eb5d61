"""SPARTA: after every step all workers average a small random share of their parameters.

Reference: Beton et al. 2025, "Improving the efficiency of distributed training using sparse parameter averaging", ICLR
2025 workshop MCDC, openreview stFPf3gzq1. With tau > 0 between the outer steps of DiLoCo (`diloco`).

    each step t of worker i:                               x_i    parameters of worker i, [d]
        x_i = x_i - lr g_i                                 g_i    stochastic gradient at x_i, [d]
        S = share d random places, the same in all         S      places of the parameters that are averaged
        x_i[S] = mean_j x_j[S]
    with outer steps, at every tau-th step in place of the average, and once more where the run ends between two:
        D = mean_j (theta - x_j)                           theta  the output model, the same in all workers, [d]
        v = beta v + D;  theta = theta - olr (D + beta v)  v      momentum of the outer optimiser, [d]
        x_i = theta

The mean of the x_i moves by the mean step alone. An average multiplies the expected squared distance of the x_i from
their mean by 1 - share. With share=1 and tau=0 this is local SGD that averages after every step: all-reduce SGD, apart
from momentum, which stays each worker's own. With tau=1 it is DiLoCo of rounds of one step.

Differences from the paper: exactly max(1, round(share d)) places are drawn from the whole vector, not each parameter
with a probability. The average is not overlapped with later steps.
Cost per worker: one all-reduce of share N bytes a step, by ring 2 (p - 1) / p share N sent; with outer steps one of N
bytes in place of every tau-th. Waits for all workers, every step.
A worker that fails (`cluster.failures`): all wait for it at the next average.
Output model: the mean of the x_i; with outer steps theta. One worker: exactly SGD; with outer steps, if olr = 1 and
beta = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from dsgd.keys import check_options
from dsgd.streams import stream
from dsgd.worker import Algorithm, Worker


@dataclass(frozen=True)
class SPARTA(Algorithm):
    share: float = 0.005  # of the parameters, averaged in a step
    tau: int = 0  # steps between two outer steps; 0: none
    olr: float = 0.7  # rate of the outer steps
    beta: float = 0.9  # momentum of the outer steps, Nesterov's
    seed: int = 0  # of random places: the run's
    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self, share="in (0, 1]", tau=">= 0", olr=">= 0", beta="in [0, 1)")

    @property
    def output(self) -> str | None:
        return "theta" if self.tau else None

    @property
    def conserves(self) -> str | None:
        return None if self.tau else "workers"

    async def train(self, worker: Worker) -> None:
        if self.tau:
            worker.keep("theta", worker.x)
        while not worker.done:
            worker.step(await worker.gradient(worker.x))
            if self.tau and worker.steps % self.tau == 0:
                await self.outer_step(worker)
            else:
                await self.average(worker)
                if self.tau and worker.done:
                    await self.outer_step(worker)

    async def average(self, worker: Worker) -> None:
        """Average the parameters at random places over all workers."""
        x, d = worker.x, sum(prod(shape) for shape in worker.layout)
        count = max(1, round(self.share * d))
        if not x.numel():  # a run for its times alone
            await worker.all_reduce_mean(x, count / d)
            return
        places = stream("places", self.seed, worker.steps).choice(d, count, replace=False)
        x[places] = await worker.all_reduce_mean(x[places], count / d)

    async def outer_step(self, worker: Worker) -> None:
        x, theta, v = worker.x, worker.keep("theta"), worker.keep("v")
        D = await worker.all_reduce_mean(theta - x)
        v.mul_(self.beta).add_(D)
        theta.add_(D, alpha=-self.olr).add_(v, alpha=-self.olr * self.beta)
        x.copy_(theta)
