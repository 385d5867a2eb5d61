"""Decentralised SGD corrected for heterogeneous data: D2, gradient tracking, quasi-global momentum, DecentLaM.

References: D2: Tang, Lian, Yan, Zhang, Liu 2018, arXiv 1803.07068. Gradient tracking: Pu, Nedic 2021, arXiv 1805.11454
(DSGT). Quasi-global momentum: Lin, Karimireddy, Stich, Jaggi 2021, arXiv 2102.04761. DecentLaM: Yuan et al. 2021,
arXiv 2104.11981.

If the workers' data differ, D-PSGD does not converge to the common minimiser, and local momentum multiplies the error.
Each of these methods removes the error, or keeps momentum from enlarging it:

    each step of worker i:                                 x    parameters of worker i, [d]
        g = gradient of f_i at x                           u    what the local step adds to x: -lr g
        d2         x, c = W (x + u + c), W (x + u + c) - (x + u)     W z  sum over j of W_ij z_j
        tracking   x, c = W (x + u + c), W (c + u) - u               c    correction, at first 0, [d]
        qg         x, m = W (x - lr (g + beta m)), beta m + (1 - beta) (x - W (x - lr (g + beta m))) / lr
        decentlam  m = beta m + (x - W (x - lr g)) / lr;  x = x - lr m

d2 and tracking lead every worker to the common minimiser, at a constant rate and for any curvatures. qg and decentlam
converge to the same point as D-PSGD without momentum. tracking is usually written x = W (x - lr y) with y the workers'
tracked mean gradient. qg uses the direction of the network's movement as the momentum of each worker.

Differences from the papers: d2 uses (I + W) / 2 as its W, which has no eigenvalue at or below the paper's limit of -1/3
in any graph. As in its paper, W must be symmetric and constant. At a rate of zero, qg and decentlam leave m unchanged.
Momentum is heavy ball, not Nesterov. With the local optimiser's momentum, which d2 and tracking allow, u is its step.
Cost per step and worker: deg(i) messages, deg(i) N bytes sent; tracking 2 deg(i) N. Waits for its neighbours' values of
the present step; no overlap. Time of a step: t + a + deg N / B.
A worker that fails (`cluster.failures`): its neighbours wait until it is back, with its corrections.
Output model: the mean of the x_i. One worker: d2 and tracking are exactly SGD, decentlam SGD with heavy ball, and qg
quasi-hyperbolic momentum of rate lr / (1 - beta) whose buffer decays by 1 - (1 - beta)^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dsgd.keys import check_options
from dsgd.topology import Topology
from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from torch import Tensor

METHODS = ("d2", "tracking", "qg", "decentlam")


@dataclass(frozen=True)
class Corrected(Algorithm):
    topology: Topology
    method: str = "d2"  # d2 | tracking | qg | decentlam
    beta: float = 0.9  # momentum of qg and decentlam
    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self, method=METHODS, beta="in [0, 1)")
        if self.method == "d2" and not self.topology.is_symmetric:
            raise ValueError(
                f"method=d2 needs an undirected topology that does not change, got topology={self.topology.name}"
            )

    @property
    def conserves(self) -> str:
        return "workers"

    @property
    def has_momentum(self) -> bool:
        return self.method in ("qg", "decentlam")

    @property
    def needs_sgd(self) -> str | None:
        return f"algo.method={self.method} (its momentum is made of SGD's steps)" if self.has_momentum else None

    def check(self, nodes: int, lr: float, momentum: float) -> None:
        self.topology.check_doubly_stochastic("corrected")
        if self.has_momentum and momentum != 0:
            reason = f"method={self.method} has a momentum of its own (algo.beta)"
            raise ValueError(f"{reason}: optimizer.momentum must be 0, got {momentum:g}")

    async def train(self, worker: Worker) -> None:
        step = getattr(self, self.method)
        c = worker.keep("m" if self.has_momentum else "c")
        while not worker.done:
            await step(worker, worker.x, c, worker.steps)

    async def d2(self, worker: Worker, x: Tensor, c: Tensor, k: int) -> None:
        worker.step(await worker.gradient(x))
        mixed = (await self.mixed(worker, k, x + c)).add_(x + c).div_(2)
        c.copy_(mixed - x)
        x.copy_(mixed)

    async def tracking(self, worker: Worker, x: Tensor, c: Tensor, k: int) -> None:
        before = x.clone()
        worker.step(await worker.gradient(x))
        u = x - before
        x_mixed, c_mixed = (await self.mixed(worker, k, _joined(x + c, c + u), size=2.0)).tensor_split(2)
        x.copy_(x_mixed)
        c.copy_(c_mixed - u)

    async def qg(self, worker: Worker, x: Tensor, m: Tensor, k: int) -> None:
        before, g, lr = x.clone(), await worker.gradient(x), worker.lr
        worker.step(g + self.beta * m)
        x.copy_(await self.mixed(worker, k, x.clone()))
        if lr > 0:
            m.mul_(self.beta).add_(before - x, alpha=(1 - self.beta) / lr)

    async def decentlam(self, worker: Worker, x: Tensor, m: Tensor, k: int) -> None:
        g, lr = await worker.gradient(x), worker.lr
        mixed = await self.mixed(worker, k, x - lr * g)
        if lr > 0:
            m.mul_(self.beta).add_(x - mixed, alpha=1 / lr)
        worker.step(m)

    async def mixed(self, worker: Worker, k: int, z: Tensor, size: float = 1.0) -> Tensor:
        """Exchange z [n] with the neighbours of step k. Returns sum over j of W_ij z_j."""
        rank = worker.rank
        received = await worker.exchange(z, self.topology.targets(rank, k), self.topology.sources(rank, k), size)
        total = z * 0.0
        for j, w_ij in self.topology.mixing_row(rank, k).items():  # ascending j: every engine adds in one order
            total = total + w_ij * (z if j == rank else received[j])
        return total


def _joined(a: Tensor, b: Tensor) -> Tensor:
    import torch

    return torch.cat([a, b])
