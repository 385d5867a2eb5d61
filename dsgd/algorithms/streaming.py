"""Streaming DiLoCo: DiLoCo whose parameters travel in fragments, one at a time, while the next steps are computed.

Reference: Douillard et al. 2025, arXiv 2501.18512, Algorithm 2. Without fragments and delay: `diloco`.

    each step t of worker i:                               x_i    parameters of worker i, [d]
        x_i = x_i - lr g_i                                 g_i    stochastic gradient at x_i, [d]
        when a fragment f leaves, every tau / P steps:     theta  the output model, the same in all workers, [d]
            begin D = mean_j (theta_f - x_jf)              f      one of P fragments, each [d / P], in turn
        delay steps later:                                 v      momentum of the outer optimiser, [d]
            v_f = beta v_f + D;  theta_f = theta_f - olr (D + beta v_f)
            x_if = mix x_if + (1 - mix) theta_f

Every fragment leaves once in tau steps; fragment f = 0 .. P - 1 is merged (f + 1) tau / P steps into a round, rounded
down. The largest burst is N / P. mix keeps a share of the worker's own change, including its steps since the fragment
left: mix=0 discards these steps. With fragments=1, delay=0 and mix=0 it is DiLoCo; with mix=1 workers never mix. On a
quadratic of curvature h, with mix=0, the outer steps are stable up to olr (1 - (1 - lr h)^(tau - delay)) = 2 (1 + beta)
/ (1 + 2 beta).

With bits < 32 differences and their means are rounded to short floats for sending, and added up in full precision; the
paper has 4 bits: a sign, 3 bits of exponent (`dsgd.compression.codes`).

Differences from the paper: fragments are ranges of the parameter vector of equal length, not layers. At the end of a
run the last fragment may leave early; theta lacks the other fragments' changes since they left.
Cost per worker: P all-reduces of N / P bytes in tau steps, by ring 2 (p - 1) / p N / tau bytes sent per step, in few
bits that times bits / 32. Waits for a fragment that takes longer than the delay. Time of a step: t + max(0, T - delay
t) P / tau, T of a fragment's all-reduce.
A worker that fails (`cluster.failures`): all wait for it at the next fragment.
Output model: theta. One worker: exactly SGD with olr = 1, beta = 0 and delay = 0, for any mix.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from dsgd.keys import check_options
from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from torch import Tensor

BITS = (32, 16, 8, 4)


@dataclass(frozen=True)
class Streaming(Algorithm):
    tau: int = 20  # steps between two merges of a fragment
    fragments: int = 4  # into which the parameters are cut: more have smaller bursts
    delay: int = 1  # steps that hide a fragment's all-reduce
    mix: float = 0.5  # share of its own parameters that a worker keeps at a merge
    olr: float = 0.7  # rate of the outer steps
    beta: float = 0.9  # momentum of the outer steps, Nesterov's
    bits: int = 32  # of a number that is sent: 32 (as it is) | 16 | 8 | 4
    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self, tau=">= 1", fragments=f"in [1, tau = {self.tau}]")
        if not 0 <= self.delay < self.tau // self.fragments:
            most = self.tau // self.fragments
            rule = f"delay must be in [0, tau / fragments = {most}) (tau={self.tau}, fragments={self.fragments})"
            raise ValueError(f"{rule}, got {self.delay}")
        check_options(self, mix="in [0, 1]", olr=">= 0", beta="in [0, 1)", bits=BITS)

    @property
    def needs_layout(self) -> bool:
        return self.fragments > 1

    def check_layout(self, layout: Sequence[tuple[int, ...]]) -> None:
        if self.fragments > (d := sum(map(prod, layout))):
            raise ValueError(f"fragments must be <= {d} (the parameters of this model), got {self.fragments}")

    @property
    def cycle(self) -> int:
        return self.tau if self.tau % self.fragments else self.tau // self.fragments

    @property
    def output(self) -> str:
        return "theta"

    @property
    def limit(self) -> float:
        """Return the outer rate up to which rounds are stable that remove the whole error."""
        return 2 * (1 + self.beta) / (1 + 2 * self.beta)

    def warning(self, nodes: int, momentum: float) -> str | None:
        if self.olr <= self.limit:
            return None
        most = f"with algo.beta={self.beta:g} at most {self.limit:g} is stable"
        return f"algo.olr={self.olr:g} is too much where rounds are long: {most}"

    def merged_at(self, f: int) -> int:
        """Return after how many steps of a round fragment f is merged."""
        return (f + 1) * self.tau // self.fragments

    async def train(self, worker: Worker) -> None:
        x, theta, v = worker.x, worker.keep("theta", worker.x), worker.keep("v")
        parts = list(zip(*(vector.tensor_split(self.fragments) for vector in (x, theta, v)), strict=True))
        while not worker.done:
            f = bisect(range(self.fragments), worker.steps % self.tau, key=self.merged_at)
            x_f, theta_f, v_f = parts[f]
            await self.steps(worker, self.merged_at(f) - self.delay - worker.steps % self.tau)
            arriving = worker.start(self.mean(worker, theta_f - x_f, f))
            await self.steps(worker, self.delay)
            self.merge(x_f, theta_f, v_f, await arriving)

    async def mean(self, worker: Worker, D: Tensor, f: int) -> Tensor:
        if self.bits == 32:
            return await worker.all_reduce_mean(D, 1 / self.fragments)
        from dsgd.compression.codes import mean_in_few_bits

        d = sum(prod(shape) for shape in worker.layout)
        count = d // self.fragments + (f < d % self.fragments)
        return await mean_in_few_bits(worker, D, count, self.bits)

    async def steps(self, worker: Worker, count: int) -> None:
        """Make `count` local steps, or fewer where the run ends."""
        for _ in range(count):
            if worker.done:
                return
            worker.step(await worker.gradient(worker.x))

    def merge(self, x: Tensor, theta: Tensor, v: Tensor, D: Tensor) -> None:
        v.mul_(self.beta).add_(D)
        theta.add_(D, alpha=-self.olr).add_(v, alpha=-self.olr * self.beta)
        x.lerp_(theta, 1 - self.mix)
