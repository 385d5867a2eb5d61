"""DiLoCo: what a round of local steps has moved is the gradient of an outer optimiser. Also SlowMo and BMUF.

Reference: Douillard et al. 2023, arXiv 2311.08105. Its outer optimisers are three papers:
    nesterov    DiLoCo
    heavy_ball  BMUF, Chen and Huo 2016 (block momentum), with ratio beta and rate olr
    slowmo      Wang, Tantia, Ballas, Rabbat 2020, arXiv 1910.00643, with slow learning rate olr

    each round of worker i:                                theta  the output model, the same in all workers, [d]
        x_i = theta                                        x_i    parameters of worker i, [d]
        tau times:  x_i = x_i - lr g_i                     g_i    stochastic gradient at x_i, [d]
        D = mean_j (theta - x_j)                           v      momentum of the outer optimiser, [d]
        nesterov:    v = beta v + D;       theta = theta - olr (D + beta v)
        heavy_ball:  v = beta v + D;       theta = theta - olr v
        slowmo:      v = beta v + D / lr;  theta = theta - olr lr v

With olr = 1 and beta = 0 each of them is local SGD. With tau = 1, olr = 1 and plain SGD within, heavy_ball and slowmo
are all-reduce SGD with momentum beta, and nesterov that with Nesterov's. On a quadratic of curvature h, a round of SGD
removes a = 1 - (1 - lr h)^tau of an error, and the outer steps are stable up to olr a = 2 (1 + beta) / (1 + 2 beta)
with nesterov, 2 (1 + beta) otherwise.

Differences from the papers: the last round may be shorter. The rate in slowmo is that of the step that comes next. The
local optimiser goes on with what it remembers, as in all implementations that were read.
Cost per worker: one all-reduce every tau steps, by ring 2 (p - 1) / p N / tau bytes sent per step. Waits every tau
steps for the slowest sum of tau gradient times.
Output model: theta. One worker: exactly SGD with olr = 1 and beta = 0, otherwise SGD with an outer optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from torch import Tensor

OUTER = ("nesterov", "heavy_ball", "slowmo")


@dataclass(frozen=True)
class DiLoCo(Algorithm):
    tau: int = 20  # local steps of a round: the paper's 500 are for runs of 88,000
    outer: str = "nesterov"  # nesterov: DiLoCo | heavy_ball: BMUF | slowmo
    olr: float = 0.7  # rate of the outer steps
    beta: float = 0.9  # momentum of the outer steps
    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.tau < 1:
            raise ValueError(f"tau must be >= 1, got {self.tau}")
        if self.outer not in OUTER:
            raise ValueError(f"outer must be one of {', '.join(OUTER)}, got {self.outer!r}")
        if not 0 <= self.olr < float("inf"):
            raise ValueError(f"olr must be >= 0, got {self.olr}")
        if not 0 <= self.beta < 1:
            raise ValueError(f"beta must be in [0, 1), got {self.beta}")

    @property
    def output(self) -> str:
        return "theta"

    @property
    def limit(self) -> float:
        """The outer rate up to which rounds that remove all of an error are stable."""
        return 2 * (1 + self.beta) / (1 + 2 * self.beta if self.outer == "nesterov" else 1)

    def warning(self, momentum: float) -> str | None:
        if self.olr <= self.limit:
            return None
        most = f"with algo.beta={self.beta:g} at most {self.limit:g} is stable"
        return f"algo.olr={self.olr:g} is too much where rounds are long: {most}"

    async def train(self, worker: Worker) -> None:
        x, theta, v = worker.x, worker.keep("theta", worker.x), worker.keep("v")
        while not worker.done:
            worker.step(await worker.gradient(x))
            if worker.steps % self.tau == 0 or worker.done:
                self.outer_step(theta, v, await worker.all_reduce_mean(theta - x), worker.lr)
                x.copy_(theta)

    def outer_step(self, theta: Tensor, v: Tensor, D: Tensor, lr: float) -> None:
        if self.outer == "nesterov":
            v.mul_(self.beta).add_(D)
            theta.add_(D, alpha=-self.olr).add_(v, alpha=-self.olr * self.beta)
        elif self.outer == "heavy_ball":
            v.mul_(self.beta).add_(D)
            theta.add_(v, alpha=-self.olr)
        else:
            scale = lr if lr > 0 else 1.0  # at a rate of zero nothing has moved
            v.mul_(self.beta).add_(D, alpha=1 / scale)
            theta.add_(v, alpha=-self.olr * scale)
