"""DiLoCo: an outer optimiser takes the change of a round of local steps as its gradient. Also SlowMo and BMUF.

Reference: Douillard et al. 2023, arXiv 2311.08105. Its outer optimisers are three papers:
    nesterov    DiLoCo
    heavy_ball  BMUF, Chen and Huo 2016 (block momentum), with ratio beta and rate olr
    slowmo      Wang, Tantia, Ballas, Rabbat 2020, arXiv 1910.00643, with slow learning rate olr
Overlapped communication: Kale, Douillard, Donchev 2025, arXiv 2502.12996, Algorithms 2 (delayed) and 3 (eager).
SparseLoCo, code=sparse: Sarfi, Therien, Lidin, Belilovsky 2025, arXiv 2508.15706.

    each round of worker i:                                theta  the output model, the same in all workers, [d]
        x_i = theta                                        x_i    parameters of worker i, [d]
        tau times:  x_i = x_i - lr g_i                     g_i    stochastic gradient at x_i, [d]
        D = mean_j (theta - x_j)                           v      momentum of the outer optimiser, [d]
        nesterov:    v = beta v + D;       theta = theta - olr (D + beta v)
        heavy_ball:  v = beta v + D;       theta = theta - olr v
        slowmo:      v = beta v + D / lr;  theta = theta - olr lr v

    with overlap=backward, D is the same. The mean of a layer's entries begins when the last gradient's backward pass
    has computed them, two thirds of its time t. With T(N) the time of an all-reduce, in c buckets, a round takes
        (tau - 1) t + max(t + T(N/c), t/3 + 2t/(3c) + c T(N/c)) in place of tau t + T(N)

    with delayed and eager, the mean is in flight during the whole next round, and the outer step takes, in place of D,
        delayed:     the mean of the round before
        eager:       the same, but with the worker's own share from this round:
                     mean_j D_j(before) + (D_i(now) - D_i(before)) / p,    D_i = theta_i - x_i
                     every worker has its own theta_i and v_i

    with code=sparse the outer step takes, in place of D,
        e_i = decay e_i + theta - x_i                      e_i    error memory of worker i's codes, [d]
        q_i = code of e_i;  e_i = e_i - q_i                q_i    the `kept` largest entries of each chunk, in few bits
        mean_j q_j                                                (`dsgd.compression.chunks`)

With olr = 1 and beta = 0, each of them is local SGD. With tau = 1, olr = 1 and plain SGD as the local optimiser,
heavy_ball and slowmo are all-reduce SGD with momentum beta, and nesterov is all-reduce SGD with Nesterov's momentum. On
a quadratic of curvature h, a round of SGD removes a = 1 - (1 - lr h)^tau of an error. The outer steps are stable up to
olr a = 2 (1 + beta) / (1 + 2 beta) with nesterov, 2 (1 + beta) otherwise. A late mean lowers the limit: `limit` has the
formulas. For nesterov with beta = 0.9 it is 1.36 without overlap; with eager 0.77 for 2 workers, 0.42 for 4 and 0.32
for 8; with delayed 0.25. With one worker, eager has no overlap. The mean of all theta_i moves by mean D(now) / p + (1 -
1 / p) mean D(before). If data differ, the theta_i stay apart. If curvatures differ as well as data, a worker counts a /
(1 + olr a / (p (1 - beta))), not a. In SparseLoCo, e_i replaces the outer momentum: olr = 1, beta = 0. With kept =
chunk and bits = 32 it is DiLoCo.

Differences from the papers: the last round may be shorter. The rate in slowmo is that of the round's last step. The
local optimiser keeps its state, as in all implementations that were read. Delayed and eager do not send the last
round's mean. SparseLoCo cuts each layer into chunks and has bins for each; here the whole vector is cut.
Cost per worker: one all-reduce every tau steps, by ring 2 (p - 1) / p N / tau bytes sent per step; with code=sparse a
code to all workers, (p - 1) N / 146 / tau as in the paper. Waits every tau steps for the slowest sum of tau gradient
times; with delayed and eager for an all-reduce that takes longer than a round.
A worker that fails (`cluster.failures`): all wait for it at the end of the round. With elastic, D is the mean over the
running workers; a worker that returns takes x, theta, v and momentum from a peer and continues its round.
Output model: theta; with eager the mean of the x_i, at the end of a round the mean of the theta_i. One worker:
exactly SGD with olr = 1 and beta = 0 and not delayed, otherwise SGD with an outer optimiser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod, sqrt
from typing import TYPE_CHECKING, ClassVar

from dsgd.keys import check_options
from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from torch import Tensor

OUTER = ("nesterov", "heavy_ball", "slowmo")
OVERLAP = ("none", "backward", "delayed", "eager")
CODES = ("none", "sparse")


@dataclass(frozen=True)
class DiLoCo(Algorithm):
    tau: int = 20  # local steps of a round: the paper's 500 are for runs of 88,000
    outer: str = "nesterov"  # nesterov: DiLoCo | heavy_ball: BMUF | slowmo
    olr: float = 0.7  # rate of the outer steps
    beta: float = 0.9  # momentum of the outer steps
    overlap: str = "none"  # of the average: none | backward: with the last backward pass | delayed, eager: with a round
    elastic: bool = False  # continue without workers that fail; false: wait for them
    code: str = "none"  # code of the change: none | sparse: SparseLoCo
    chunk: int = 4096  # entries of a chunk of sparse
    kept: int = 64  # of sparse: entries sent of each chunk
    bits: int = 2  # of sparse: of a value that is sent, 2 to 8; 32: as it is
    decay: float = 0.95  # of sparse: of what codes have left out, from round to round; 1 loses nothing
    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self, tau=">= 1", outer=OUTER, overlap=OVERLAP)
        if self.elastic and self.overlap != "none":
            raise ValueError(f"overlap must be none with elastic, got {self.overlap!r}")
        if self.elastic and self.code != "none":
            raise ValueError(f"code must be none with elastic, got {self.code!r}")
        check_options(self, olr=">= 0", beta="in [0, 1)", code=CODES)
        if self.code == "sparse" and self.overlap != "none":
            raise ValueError(f"code must be none with algo.overlap={self.overlap}, got {self.code!r}")
        check_options(self, chunk=">= 1", kept=f"in [1, chunk = {self.chunk}]")
        if self.bits != 32 and not 2 <= self.bits <= 8:
            raise ValueError(f"bits must be 2 to 8, or 32, got {self.bits}")
        check_options(self, decay="in [0, 1]")

    @property
    def output(self) -> str | None:
        return "theta" if self.overlap != "eager" else None

    @property
    def cycle(self) -> int:
        return self.tau if self.is_late else 1

    @property
    def hides_sums(self) -> bool:
        return self.overlap == "backward"

    @property
    def is_late(self) -> bool:
        """Return whether the mean applies a round later."""
        return self.overlap in ("delayed", "eager")

    def limit(self, nodes: int) -> float:
        """Return the outer rate up to which rounds are stable that remove the whole error.

        An outer step takes 1 - late of the error at the start of this round, and late of that of the round before. The
        limit is where a root of the recurrence reaches -1, or where a pair of complex ones reaches modulus 1."""
        late, beta = {"delayed": 1.0, "eager": 1 - 1 / nodes}.get(self.overlap, 0.0), self.beta
        if late == 0:
            return 2 * (1 + beta) / (1 + 2 * beta if self.outer == "nesterov" else 1)
        if self.outer != "nesterov":
            return min((1 - beta) / late, 2 * (1 + beta) / (1 - 2 * late) if late < 0.5 else inf)
        linear = late * (1 + beta - beta**2) - beta
        square = late * beta * (1 + beta - late)
        return 2 * (1 - beta) / (linear + sqrt(linear**2 + 4 * square * (1 - beta)))

    def warning(self, nodes: int, momentum: float) -> str | None:
        limit = self.limit(nodes)
        if self.olr <= limit:
            return None
        late = f" and algo.overlap={self.overlap}" if self.is_late else ""
        most = f"with algo.beta={self.beta:g}{late} at most {limit:g} is stable"
        return f"algo.olr={self.olr:g} is too much where rounds are long: {most}"

    def check_layout(self, layout: Sequence[tuple[int, ...]]) -> str | None:
        d = sum(prod(shape) for shape in layout)
        if self.code != "sparse" or self.kept == self.chunk or d >= self.chunk:
            return None
        share, usual = min(self.kept, d) / d, self.kept / self.chunk
        reason = f"algo.chunk={self.chunk} is more than the {d} parameters of this model"
        return f"algo.kept={self.kept} sends {share:.3g} of the entries, not {usual:.3g}: {reason}"

    async def train(self, worker: Worker) -> None:
        x, theta, v = worker.x, worker.keep("theta", worker.x), worker.keep("v")
        if self.is_late:
            return await self.overlapped(worker, theta, v)
        while not worker.done:
            g, lr = await worker.gradient(x), worker.lr
            worker.step(g)
            if worker.steps % self.tau == 0 or worker.done:
                D = theta - x
                if self.hides_sums:
                    mean = await worker.hidden_mean(D)
                else:
                    mean = await (worker.all_reduce_mean(D) if self.code == "none" else self.sparse_mean(worker, D))
                self.outer_step(theta, v, mean, lr)
                x.copy_(theta)

    async def sparse_mean(self, worker: Worker, D: Tensor) -> Tensor:
        """Return the mean of the workers' codes of D and of what earlier codes left out."""
        from dsgd.compression import chunks

        e = worker.keep("error")
        e.mul_(self.decay).add_(D)
        q, mean = await chunks.chunked_mean(worker, e, self.chunk, self.kept, self.bits)
        e.sub_(q)
        return mean

    async def overlapped(self, worker: Worker, theta: Tensor, v: Tensor) -> None:
        x, before, lr = worker.x, worker.keep("difference"), worker.lr
        while not worker.done:
            arriving = worker.start(worker.all_reduce_mean(before.clone())) if worker.steps else None
            for _ in range(self.tau):
                if worker.done:
                    break
                g, lr = await worker.gradient(x), worker.lr
                worker.step(g)
            now = theta - x
            mean = before if arriving is None else await arriving  # nothing before the first round
            if self.overlap == "eager":
                mean = mean + (now - before) / worker.nodes
            self.outer_step(theta, v, mean, lr)
            before.copy_(now)
            x.copy_(theta)

    def outer_step(self, theta: Tensor, v: Tensor, D: Tensor, lr: float) -> None:
        if self.outer == "nesterov":
            v.mul_(self.beta).add_(D)
            theta.add_(D, alpha=-self.olr).add_(v, alpha=-self.olr * self.beta)
        elif self.outer == "heavy_ball":
            v.mul_(self.beta).add_(D)
            theta.add_(v, alpha=-self.olr)
        else:
            v.mul_(self.beta)
            if lr > 0:  # at a rate of zero nothing has moved, and nothing shall
                v.add_(D, alpha=1 / lr)
                theta.add_(v, alpha=-self.olr * lr)
