"""Local SGD: every worker trains alone for tau steps, then all average their parameters.

Reference: Stich 2019, arXiv 1805.09767; McMahan et al. 2017, arXiv 1602.05629 (federated averaging).

    each step k of worker i:
        x_i = x_i - lr gradient of f_i at x_i          x_i  parameters of worker i, [d]
        if k is a multiple of tau:
            x_i = mean over all workers j of x_j
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dsgd.worker import Algorithm, Worker


@dataclass(frozen=True)
class LocalSGD(Algorithm):
    tau: int = 8  # steps between two averages
    lockstep: ClassVar[bool] = True  # all workers make the same number of steps

    def __post_init__(self) -> None:
        if self.tau < 1:
            raise ValueError(f"tau must be >= 1, got {self.tau}")

    async def train(self, worker: Worker) -> None:
        while not worker.done:
            worker.step(await worker.gradient())
            if worker.steps % self.tau == 0:
                worker.x.copy_(await worker.all_reduce_mean(worker.x.clone()))
