"""CHOCO-SGD: gossip in a graph that sends compressed differences only.

References: Koloskova, Stich, Jaggi 2019, arXiv 1902.00340, Algorithm 2; for deep learning: Koloskova, Lin, Stich, Jaggi
2020, arXiv 1907.09356. The compressors are in `dsgd.compression.codes`.

    each step of worker i, order=paper:                    x_i    parameters of worker i, [d]
        g = gradient of f_i at x_i                         h_i    public copy of x_i ("x hat"), at first 0, [d]
        x_i = x_i - lr g                                   s_i    sum over j of W_ij h_j, at first 0, [d]
        q_i = C(x_i - h_i), sent to the neighbours         C      the compressor, [d] to a short code
        h_i = h_i + q_i                                    W_ij   mixing weights, symmetric, i itself included
        s_i = s_i + sum over j of W_ij q_j                 gamma  step of the mixing
        x_i = x_i + gamma (s_i - h_i)

    order=code sends at first, q_i = C(x_i - h_i), while g is computed; then come the step and the mixing

Each worker knows its neighbours' h_j from their messages, and needs only the sum s_i. The mean of the x_i moves by -lr
mean g with any compressor. With compressor=none and gamma=1, order=paper is D-PSGD with gradient=first, and order=code
is the published D-PSGD, gradient=before.

Convergence depends on gamma: without compression the workers reach consensus for 0 < gamma < 2 / (1 - lambda_min(W)),
1.5 on a ring with even p. Shorter codes need a smaller gamma. The authors use 0.45 for signs on a ring of 8.

Differences from the paper: order=code follows the authors' program, which sends at the end of a step; here the next
step begins with sending. As in that program, qsgd is divided by 1 + min(d / levels^2, sqrt(d) / levels), because it
would otherwise enlarge the difference. The whole vector is compressed at once, not layer by layer. step() may add local
momentum, which is not mixed.
Cost per step and worker: deg(i) codes of n bytes, of the same sizes as in `algo=compressed`. Waits for its
neighbours' codes of the present step. Time of a step: t + c + a + deg n / B; with order=code max(t, c + a + deg n / B).
c is `code_s`, the time of 1 encoding and deg + 1 decodings in real processes (benchmarks/codes.py measures it).
A worker that fails (`cluster.failures`): its neighbours wait until it is back, with its copies of their h_j.
Output model: the mean of the x_i. One worker: exactly SGD, because s_i = h_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from dsgd.keys import check_options
from dsgd.topology import Topology
from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from torch import Tensor

COMPRESSORS = ("topk", "randomk", "sign", "qsgd", "none")
SENDING = ("paper", "code")


@dataclass(frozen=True)
class CHOCO(Algorithm):
    topology: Topology
    compressor: str = "sign"  # topk | randomk | sign | qsgd | none
    share: float = 0.01  # share of the entries that topk and randomk send
    levels: int = 127  # levels of qsgd: 127 need 8 bits with the sign
    gamma: float = 0.45  # step of the mixing
    order: str = "paper"  # paper: step, send, mix | code: send while the gradient is computed, step, mix
    seed: int = 0  # of random places: the run's
    code_s: float = 0.0  # seconds that coding and decoding take in a step
    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self, compressor=COMPRESSORS, share="in (0, 1]")
        if not 1 <= self.levels < 2**31:
            raise ValueError(f"levels must be in [1, 2**31), got {self.levels}")
        check_options(self, gamma=">= 0", order=SENDING, code_s=">= 0")

    @property
    def conserves(self) -> str:
        return "workers"

    def check(self, nodes: int, lr: float, momentum: float) -> None:
        if not self.topology.is_symmetric:
            rule = "algo=choco needs an undirected topology that does not change"
            raise ValueError(f"{rule}, got topology={self.topology.name}")

    def warning(self, nodes: int, momentum: float) -> str | None:
        if self.gamma == 0:
            return "algo.gamma=0 mixes nothing: every worker trains alone"
        if self.gamma <= 1:  # all eigenvalues are above -1
            return None
        spread = 1 - self.topology.least_eigenvalue
        if self.gamma * spread < 2:
            return None
        rule = f"topology={self.topology.name} bears less than {2 / spread:.4g}, with short codes still less"
        return f"algo.gamma={self.gamma:g} lets the workers drift apart: {rule}"

    async def train(self, worker: Worker) -> None:
        x, hat, mixed = worker.x, worker.keep("hat"), worker.keep("mixed")
        while not worker.done:
            if self.order == "paper":
                worker.step(await worker.gradient(x))
                await self.send(worker, hat, mixed)
            else:
                arriving = worker.start(self.send(worker, hat, mixed))
                g = await worker.gradient(x)
                await arriving
                worker.step(g)
            x.add_(mixed - hat, alpha=self.gamma)

    async def send(self, worker: Worker, hat: Tensor, mixed: Tensor) -> None:
        """Send the code of x - hat, and add the decoded codes to hat and to the mixture of the neighbours' hats."""
        from dsgd.compression import codes

        d = sum(prod(shape) for shape in worker.layout)
        k = max(1, round(self.share * d))
        a = worker.x - hat
        size = codes.packed_size(self.compressor, d, a.element_size(), k, self.levels) / d
        peers = self.topology.targets(worker.rank)
        if self.code_s > 0:
            await worker.busy(self.code_s)
        if not a.numel():  # a run for its times alone
            await worker.exchange(a, peers, size=size)
            return
        coder = codes.coder(self.compressor, d, k, self.levels, worker.rng, self.seed, worker.steps)
        code = coder.encode(a)
        coded = {worker.rank: code} | await worker.exchange(code, peers, size=size)
        shrunk = codes.excess(self.compressor, d, self.levels)
        for j, w_ij in self.topology.mixing_row(worker.rank).items():  # ascending j: every engine adds in one order
            q = coder.decode(coded[j])
            q = q if shrunk == 1 else q / shrunk
            mixed.add_(q, alpha=w_ij)
            if j == worker.rank:
                hat.add_(q)
