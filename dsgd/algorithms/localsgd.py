"""Local SGD: every worker makes tau local steps, then all average their parameters. Also post-local SGD, and
hierarchical local SGD.

Reference: Stich 2019, arXiv 1805.09767; post-local and hierarchical: Lin, Stich, Patel, Jaggi 2020, arXiv 1808.07217.

    each step t of worker i:                               x_i   parameters of worker i, [d]
        while t < switch:  x_i = x_i - lr mean_j g_j       g_i   stochastic gradient at x_i, [d]
        afterwards, before every tau-th step but the first of these:  x_i = mean_j x_j
                           x_i = x_i - lr g_i              tau   local steps of a round

Hierarchical: groups of `group` workers with consecutive ranks average before every inner_tau-th step, and all before
every tau-th, a multiple of it. With one group of all this is local SGD of inner_tau.

With the same curvature in all workers, the mean of the x_i follows synchronous SGD for any tau. If the curvatures
differ, it converges to another point, which gives a worker of curvature h the weight 1 - (1 - lr h)^tau.

The treatment of local momentum (or Adam's moments) at an average makes three algorithms with three such points:
    keep     each worker keeps its own, as torch's PeriodicModelAverager
    zero     it is reset at the start of a round
    average  it is averaged by one more all-reduce for each vector

Differences from the papers: the last round ends without an average, which the output model does not need.
Cost per worker: one all-reduce every tau steps, by ring 2 (p - 1) / p N / tau bytes sent per step; before the switch
the all-reduce of `sync`, overlapped. Waits every tau steps for the slowest sum of tau gradient times. In a group of g,
each worker sends its vector to all others, (g - 1) N bytes for an average where a ring would send 2 (g - 1) / g N, and
waits for the slowest worker of the group.
A worker that fails (`cluster.failures`): all wait for it at the next average. With elastic they average without it;
when it returns, it takes x and momentum from a peer and continues that peer's round.
Output model: the mean of the x_i. One worker: exactly SGD, but for `momentum=zero`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from dsgd.keys import check_options
from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from torch import Tensor

MOMENTUM = ("keep", "zero", "average")


@dataclass(frozen=True)
class LocalSGD(Algorithm):
    tau: int = 4  # local steps of a round: more send less, and let the workers drift further apart
    switch: int = 0  # post-local SGD: number of first steps that average gradients instead
    momentum: str = "keep"  # the local optimiser's, at an average: keep | zero | average
    group: int = 1  # workers of a group with consecutive ranks, for example of an island; 1: no groups
    inner_tau: int = 1  # local steps between the averages of a group
    elastic: bool = False  # continue without workers that fail; false: wait for them
    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self, tau=">= 1", switch=">= 0", momentum=MOMENTUM, group=">= 1", inner_tau=">= 1")
        if self.group > 1 and self.tau % self.inner_tau:
            raise ValueError(f"inner_tau must divide tau ({self.tau}), got {self.inner_tau}")
        if self.elastic and self.switch:
            raise ValueError(f"switch must be 0 with elastic, got {self.switch}")
        if self.elastic and self.group > 1:
            raise ValueError(f"group must be 1 with elastic, got {self.group}")

    def check(self, nodes: int, lr: float, momentum: float) -> None:
        if nodes % self.group:
            raise ValueError(f"group must divide the number of nodes (nodes={nodes}), got {self.group}")

    @property
    def conserves(self) -> str:
        return "workers"

    async def train(self, worker: Worker) -> None:
        while not worker.done:
            if worker.steps < self.switch:
                worker.step(await worker.mean_gradient())
                continue
            made = worker.steps - self.switch
            if made > 0 and made % self.tau == 0:
                await self.average(worker, worker.all_reduce_mean)
            elif made > 0 and self.group > 1 and made % self.inner_tau == 0:
                await self.average(worker, partial(self.mean_of_group, worker))
            worker.step(await worker.gradient(worker.x))

    async def average(self, worker: Worker, mean: Callable[[Tensor], Awaitable[Tensor]]) -> None:
        worker.x.copy_(await mean(worker.x.clone()))
        if self.momentum == "zero":
            worker.forget()
        elif self.momentum == "average":
            for v in worker.remembered:
                v.copy_(await mean(v.clone()))

    async def mean_of_group(self, worker: Worker, v: Tensor) -> Tensor:
        """Compute the mean [d] over the worker's group, added in the order of ranks: the same bits in every worker."""
        first = worker.rank - worker.rank % self.group
        members = range(first, first + self.group)
        vectors = {worker.rank: v} | await worker.exchange(v, [peer for peer in members if peer != worker.rank])
        mean = vectors[first].clone()
        for peer in members[1:]:
            mean.add_(vectors[peer])
        return mean.div_(self.group)
