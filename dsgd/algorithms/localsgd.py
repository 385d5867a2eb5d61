"""Local SGD: every worker makes tau steps of its own, then all average their parameters; also post-local SGD.

Reference: Stich 2019, arXiv 1805.09767; post-local: Lin, Stich, Patel, Jaggi 2020, arXiv 1808.07217.

    each step t of worker i:                               x_i   parameters of worker i, [d]
        while t < switch:  x_i = x_i - lr mean_j g_j       g_i   stochastic gradient at x_i, [d]
        afterwards, before every tau-th step but the first of these:  x_i = mean_j x_j
                           x_i = x_i - lr g_i              tau   local steps of a round

With the same curvature in all workers the mean of the x_i goes the way of synchronous SGD, whatever tau is; where the
curvatures differ, it converges to another point, which gives a worker of curvature h the weight 1 - (1 - lr h)^tau.

What becomes of local momentum (or Adam's moments) at an average makes three algorithms with three such points:
    keep     each worker goes on with its own, as torch's PeriodicModelAverager
    zero     a round begins without
    average  it is averaged as well, by one more all-reduce for each vector

Differences from the papers: the last round ends without an average, which the output model does not need.
Cost per worker: one all-reduce every tau steps, by ring 2 (p - 1) / p N / tau bytes sent per step; before the switch
the all-reduce of `sync`, overlapped. Waits every tau steps for the slowest sum of tau gradient times.
Output model: the mean of the x_i. One worker: exactly SGD, but for `momentum=zero`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dsgd.worker import Algorithm, Worker

MOMENTUM = ("keep", "zero", "average")


@dataclass(frozen=True)
class LocalSGD(Algorithm):
    tau: int = 4  # local steps of a round: more send less, and let the workers drift further apart
    switch: int = 0  # of post-local SGD: so many steps average gradients instead
    momentum: str = "keep"  # of the local optimiser, at an average: keep | zero | average
    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.tau < 1:
            raise ValueError(f"tau must be >= 1, got {self.tau}")
        if self.switch < 0:
            raise ValueError(f"switch must be >= 0, got {self.switch}")
        if self.momentum not in MOMENTUM:
            raise ValueError(f"momentum must be one of {', '.join(MOMENTUM)}, got {self.momentum!r}")

    @property
    def conserves(self) -> str:
        return "workers"

    async def train(self, worker: Worker) -> None:
        x = worker.x
        while not worker.done:
            if worker.steps < self.switch:
                worker.step(await worker.mean_gradient())
                continue
            if worker.steps > self.switch and (worker.steps - self.switch) % self.tau == 0:
                x.copy_(await worker.all_reduce_mean(x.clone()))
                if self.momentum == "zero":
                    worker.forget()
                elif self.momentum == "average":
                    for v in worker.remembered:
                        v.copy_(await worker.all_reduce_mean(v.clone()))
            worker.step(await worker.gradient(x))
