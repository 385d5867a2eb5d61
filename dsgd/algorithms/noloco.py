"""NoLoCo: DiLoCo without a collective; after local steps, random pairs average their changes and approach each other.

Reference: Kolehmainen et al. 2025, arXiv 2506.10911.

    each round of worker i:                                phi_i  slow parameters of worker i, [d]
        x_i = phi_i                                        x_i    parameters of worker i, [d]
        tau times:  x_i = x_i - lr g_i                     g_i    stochastic gradient at x_i, [d]
        j = partner of i in this round                     m_i    momentum of the outer optimiser, [d]
        m_i = beta m_i + olr mean(x - phi) + gamma (mean(phi) - phi_i)     means over i and j
        phi_i = phi_i + m_i

gamma pulls partners together; without it they would drift apart. Only olr (x - phi) + gamma phi is sent. Without
gradients the distances of the phi_i shrink in mean square for 0 < gamma < 2 (1 - beta^2) / (1 - beta / (p - 1)):
DiLoCo's momentum of 0.9 leaves little room. With equal curvatures, the mean of the phi_i follows DiLoCo with heavy
ball; with two workers that start at one point, every phi_i does.

Differences from the paper: each round draws new pairs, from a seed that all workers share. With an odd number of
workers, one is its own partner. One vector is sent instead of two. The last round may be shorter.
Cost per worker: N bytes in tau steps. Waits for one partner, every tau steps, not for the slowest of all.
A worker that fails (`cluster.failures`): only its partner of the round waits for it.
Output model: the mean of the x_i, at the end of a round the mean of the phi_i. One worker: SGD with an outer
optimiser, exactly SGD with olr = 1 and beta = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dsgd.keys import check_options
from dsgd.streams import stream
from dsgd.worker import Algorithm, Worker


@dataclass(frozen=True)
class NoLoCo(Algorithm):
    tau: int = 20  # local steps of a round: the paper's 50 are for runs of 25,000
    olr: float = 0.7  # rate of the outer steps
    beta: float = 0.5  # momentum of the outer steps
    gamma: float = 0.7  # pull towards the partner's slow parameters
    seed: int = 0  # of the pairs: the run's
    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self, tau=">= 1", olr=">= 0", gamma=">= 0", beta="in [0, 1)")

    def warning(self, nodes: int, momentum: float) -> str | None:
        if nodes == 1:
            return None
        most = 2 * (1 - self.beta**2) / (1 - self.beta / (nodes - 1))
        if 0 < self.gamma < most:
            return None
        rule = f"with algo.beta={self.beta:g} and nodes={nodes} it must be > 0 and < {most:.4g}"
        return f"algo.gamma={self.gamma:g} lets the workers drift apart: {rule}"

    def partner(self, worker: Worker, turn: int) -> list[int]:
        """Return the partner in this round, counted from 0; none for the worker that is left over."""
        order = stream("pairs", self.seed, turn).permutation(worker.nodes).tolist()
        position = order.index(worker.rank) ^ 1
        return order[position : position + 1]

    async def train(self, worker: Worker) -> None:
        x, phi, m = worker.x, worker.keep("phi", worker.x), worker.keep("m")
        while not worker.done:
            worker.step(await worker.gradient(x))
            if worker.steps % self.tau and not worker.done:
                continue
            partner = self.partner(worker, (worker.steps - 1) // self.tau)
            moved = (x - phi).mul_(self.olr).add_(phi, alpha=self.gamma)
            mean = moved
            for theirs in (await worker.exchange(moved, partner)).values():
                mean = moved.lerp(theirs, 0.5)
            m.mul_(self.beta).add_(mean).sub_(phi, alpha=self.gamma)
            phi.add_(m)
            x.copy_(phi)
