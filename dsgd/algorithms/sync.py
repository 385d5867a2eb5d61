"""Synchronous all-reduce SGD: every step all workers average their gradients and apply the same update.

Reference: Chen et al. 2016, arXiv 1604.00981 (synchronous SGD); Goyal et al. 2017, arXiv 1706.02677 (large batches).
Also known as data-parallel SGD. It is exactly SGD with the batch of all workers together, batch norm aside.

    each step of worker i:
        g_i = gradient of f_i at x                 x    the parameters, the same in all workers, [d]
        g   = mean over all workers j of g_j       g_i  stochastic gradient of worker i, [d]
        x   = x - lr g                             lr   learning rate

With `backups` b > 0, Chen et al.'s backup workers, g is the mean of the first p - b of the g_j that are complete. The
late gradients are discarded: their workers finish them, make the others' steps meanwhile, and then take part again.

Time of a step, with t the longest gradient time, two thirds of it backward pass, and T(N) the time of an all-reduce:
    overlap=false:  t + T(N)
    overlap=true:   max(t + T(N/c), t/3 + 2t/(3c) + c T(N/c)): communication hides behind the backward pass; the
                    gradient is reduced in c buckets, one after the other, each when all workers have finished it
    backups=b:      as overlap=false, with t the time of the (p - b)-th gradient

Differences from the papers: Chen et al. have parameter servers, which take the first gradients; here every worker takes
part in the all-reduce, the late ones with zeros. As in the paper, a worker finishes its late gradient before it begins
another. step() may add momentum, in a buffer that is the same in all workers.
Cost per step and worker: one all-reduce, by ring 2 (p - 1) messages, 2 (p - 1) / p N bytes sent; waits for all workers,
with backups for all but b.
A worker that fails (`cluster.failures`): all wait until it is back; with backups they continue while p - b are up. With
elastic, g is the mean over the running workers; a worker that returns takes x and momentum from a peer.
Output model: the mean of the x_i, which are equal bit for bit. One worker: exactly SGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dsgd.worker import Algorithm, Worker


@dataclass(frozen=True)
class Sync(Algorithm):
    overlap: bool = True  # false: a step costs the gradient and then the all-reduce
    backups: int = 0  # number of gradients that a step does not wait for: the last ones
    elastic: bool = False  # continue without workers that fail; false: wait for them
    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.backups and self.overlap:
            raise ValueError("overlap must be false with backups: the first to come are whole gradients, got true")
        if self.elastic and self.overlap:
            raise ValueError("overlap must be false with elastic: who is up is known after whole gradients, got true")
        if self.elastic and self.backups:
            raise ValueError(f"backups must be 0 with elastic, got {self.backups}")

    @property
    def barrier(self) -> bool:
        return not self.backups

    @property
    def conserves(self) -> str:
        return "workers"

    async def train(self, worker: Worker) -> None:
        while not worker.done:
            if self.backups:
                g = await worker.mean_of_first(worker.nodes - self.backups)
            elif self.overlap:
                g = await worker.mean_gradient()
            else:
                g = await worker.all_reduce_mean(await worker.gradient(worker.x))
            worker.step(g)
