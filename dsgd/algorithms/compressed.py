"""Compressed gradients with error feedback: workers send short codes of their gradients and keep the error.

References: error feedback: Karimireddy et al. 2019, arXiv 1901.09847. PowerSGD: Vogels, Karimireddy, Jaggi 2019, arXiv
1905.13727. The other codes are in `dsgd.compression.codes`.

    each step of worker i:                                 g     stochastic gradient at the common x, [d]
        a = e_i + g                                        e_i   error memory: what earlier codes left out, [d]
        q_i = code of a;  e_i = a - q_i                    q_i   the decoded code, [d]
        x = x - lr mean_j q_j                              x     parameters, the same in all workers, [d]

    powersgd, for the gradient of each layer as a matrix M_i, [n, m]:      Q  [m, rank], kept from step to step
        P = orthogonalised mean_i (M_i Q);  Q = mean_i (M_i^T P);  q = P Q^T, the same in all workers
        biases, and layers for which P and Q would not be smaller, are averaged uncompressed (a rank that leaves
        the whole model uncompressed is refused if a lower rank would compress)

At a constant rate, x - lr mean e is the x that the same gradients would give uncompressed: nothing is lost, only late.
qsgd is divided by 1 + min(d / levels^2, sqrt(d) / levels) where errors are kept, as in `algo=choco`: unbiased qsgd
would enlarge the errors of long vectors from step to step.
With code=none, or with topk of all entries, this is all-reduce SGD. feedback=false discards the errors.

Differences from the papers: step() adds momentum after decoding. Errors are in units of gradients, so a change of the
rate does not affect them. powersgd compresses layer by layer, the other codes the whole vector at once.
Cost per step and worker, N = 4 d bytes: powersgd two all-reduces, one after the other, of 4 rank sum(n) and 4 rank
sum(m) bytes and the uncompressed layers; randomk and none one all-reduce; the others a message to all workers, p - 1
codes. Coding takes `code_s` in the simulator. Waits for all workers.
A worker that fails (`cluster.failures`): all wait until it is back, with its error memory.
Output model: the mean of the x_i, which are equal bit for bit. One worker: SGD with late gradients; exactly SGD with
code=none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from dsgd.keys import check_options
from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from torch import Tensor

CODES = ("powersgd", "topk", "randomk", "sign", "qsgd", "none")


@dataclass(frozen=True)
class Compressed(Algorithm):
    code: str = "powersgd"  # powersgd | topk | randomk | sign | qsgd | none
    rank: int = 2  # of powersgd
    share: float = 0.01  # share of the entries that topk and randomk send
    levels: int = 127  # levels of qsgd: 127 need 8 bits with the sign
    feedback: bool = True  # false: the error of a code is discarded
    code_s: float = 0.0  # seconds that coding and decoding take in a step
    seed: int = 0  # of random places, and of the first Q: the run's
    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self, code=CODES, rank=">= 1", share="in (0, 1]")
        if not 1 <= self.levels < 2**31:
            raise ValueError(f"levels must be in [1, 2**31), got {self.levels}")
        check_options(self, code_s=">= 0")

    @property
    def barrier(self) -> bool:
        return True

    @property
    def needs_layout(self) -> bool:
        return self.code == "powersgd"

    def check_layout(self, layout: Sequence[tuple[int, ...]]) -> None:
        sides = [(shape[0], prod(shape[1:])) for shape in layout if shape]
        most = max(((n * m - 1) // (n + m) for n, m in sides), default=0)  # rank (n + m) < n m
        if self.code == "powersgd" and 0 < most < self.rank:
            raise ValueError(f"rank must be <= {most} (more would compress no layer of this model), got {self.rank}")

    @property
    def conserves(self) -> str:
        return "workers"

    async def train(self, worker: Worker) -> None:
        x, e = worker.x, worker.keep("error")
        mean = self.low_rank_mean if self.code == "powersgd" else self.mean
        while not worker.done:
            a = e + await worker.gradient(x)
            if self.code_s > 0:
                await worker.busy(self.code_s)
            q, q_mean = await mean(worker, a)
            if self.feedback:
                e.copy_(a - q)
            worker.step(q_mean)

    async def mean(self, worker: Worker, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return the worker's decoded code, and the mean of all decoded codes, both [d]."""
        from dsgd.compression import codes

        d = sum(prod(shape) for shape in worker.layout)
        k = max(1, round(self.share * d))
        size = codes.packed_size(self.code, d, a.element_size(), k, self.levels) / d
        others = [(worker.rank + i) % worker.nodes for i in range(1, worker.nodes)]
        is_reduced = self.code in ("none", "randomk")
        if not a.numel():  # a run for its times alone
            await (worker.all_reduce_mean(a, size) if is_reduced else worker.exchange(a, others, size=size))
            return a, a
        coder = codes.coder(self.code, d, k, self.levels, worker.rng, self.seed, worker.steps)
        if is_reduced:
            code = coder.encode(a)
            return coder.decode(code), coder.decode(await worker.all_reduce_mean(code, size))
        coded = {worker.rank: coder.encode(a)}
        coded |= await worker.exchange(coded[worker.rank], others, size=size)
        shrunk = codes.excess(self.code, d, self.levels) if self.feedback else 1.0
        q = coder.decode(coded[worker.rank]) / shrunk
        total = a.new_zeros(d)
        for rank in range(worker.nodes):  # in the same order everywhere: x must be equal bit for bit
            total.add_(coder.decode(coded[rank]))
        return q, total.div_(worker.nodes * shrunk)

    async def low_rank_mean(self, worker: Worker, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same for PowerSGD, whose code is of the mean."""
        from dsgd.compression.codes import low_rank_mean

        return await low_rank_mean(worker, a, self.rank, self.seed)
