"""Synchronous all-reduce SGD: every step all workers average their gradients and apply the same update.

Reference: Chen et al. 2016, arXiv 1604.00981 (synchronous SGD); Goyal et al. 2017, arXiv 1706.02677 (large batches).
Also known as data-parallel SGD. It is exactly SGD with the batch of all workers together, batch norm aside.

    each step of worker i:
        g_i = gradient of f_i at x                 x    the parameters, the same in all workers, [d]
        g   = mean over all workers j of g_j       g_i  stochastic gradient of worker i, [d]
        x   = x - lr g                             lr   learning rate

Time of a step, with t the longest gradient time, two thirds of it the backward pass, and T(N) that of an all-reduce:
    overlap=false:  t + T(N)
    overlap=true:   max(t + T(N/c), t/3 + 2t/(3c) + c T(N/c)): communication hides behind the backward pass; the
                    gradient is reduced in c buckets, one after the other, each when all workers have finished it

Differences from the papers: no backup workers. step() may add momentum, in a buffer that is the same everywhere.
Cost per step and worker: one all-reduce, by ring 2 (p - 1) messages, 2 (p - 1) / p N bytes sent; waits for everybody.
Output model: the mean of the x_i, which are equal bit for bit. One worker: exactly SGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dsgd.worker import Algorithm, Worker


@dataclass(frozen=True)
class Sync(Algorithm):
    overlap: bool = True  # false: a step costs the gradient and then the all-reduce
    lockstep: ClassVar[bool] = True
    barrier: ClassVar[bool] = True

    @property
    def conserves(self) -> str:
        return "workers"

    async def train(self, worker: Worker) -> None:
        while not worker.done:
            if self.overlap:
                g = await worker.mean_gradient()
            else:
                g = await worker.all_reduce_mean(await worker.gradient(worker.x))
            worker.step(g)
