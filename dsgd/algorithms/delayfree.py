"""Asynchronous SGD without gradient delay: the average of a cycle's start arrives at its end.

Reference: Talyansky et al. 2018, "Asynchronous SGD without gradient delay for efficient distributed training",
Algorithm 2. The same recursion as CoCoD-SGD (Shen et al. 2019, arXiv 1906.12043).

    each cycle of worker i:                                x_i   parameters of worker i, [d]
        s = x_i;  start all-reduce of s                    s     x_i at the start of the cycle, the paper's x_init
        beta times:  x_i = x_i - lr g(x_i)                 beta  steps of a cycle, tau / 2
        P = the mean that arrives                          P     mean over all workers of their s
        x_i = P + (x_i - s)                                tau   staleness bound, even

No update is lost or delayed on the mean: the mean of the x_i moves by the mean of the displacements x_i - s. Not local
SGD, which averages what the cycle ended with, and waits for it.

Differences from the paper: step() may add local momentum, which is kept across cycles and not averaged. The last cycle
may be shorter. The merge is written x_i + (P - s), which is exactly SGD for one worker.
Cost per worker: one all-reduce every beta steps, by ring 2 (p - 1) / p N / beta bytes sent per step. Waits at the end
of a cycle for max(0, T - beta t), T the time of the all-reduce, t of a gradient: nothing as soon as beta t >= T.
A worker that fails (`cluster.failures`): all wait for it at the end of the cycle.
Output model: the mean of the x_i, which the merge does not change. One worker: exactly SGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dsgd.worker import Algorithm, Worker


@dataclass(frozen=True)
class DelayFree(Algorithm):
    tau: int = 16  # twice the steps of a cycle: larger hides a slower network and lets the workers drift further apart
    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.tau < 2 or self.tau % 2:
            raise ValueError(f"tau must be even and >= 2 (a cycle is tau / 2 steps), got {self.tau}")

    @property
    def cycle(self) -> int:
        return self.tau // 2

    @property
    def conserves(self) -> str:
        return "workers"

    async def train(self, worker: Worker) -> None:
        x = worker.x
        while not worker.done:
            start = x.clone()
            arriving = worker.start(worker.all_reduce_mean(start))
            for _ in range(self.cycle):
                if worker.done:
                    break
                worker.step(await worker.gradient(x))
            x.add_(await arriving - start)
