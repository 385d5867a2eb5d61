"""GASLoC: local steps, then gossip with an outer optimiser, over a graph or with random peers.

Reference: Cagnasso, Belilovsky, Oyallon 2026, arXiv 2606.11081. With overlap > 0 our reading of Factored Gossip DiLoCo,
Hewa Koneputugodage et al. 2026, arXiv 2606.22768.

    each round of worker i:                                theta_i  its parameters after the round before, [d]
        x_i = theta_i                                      x_i      parameters of worker i, [d]
        tau times:  x_i = x_i - lr g_i                     g_i      stochastic gradient at x_i, [d]
        u_i = theta_i + eta (x_i - theta_i)                u_i      after local steps at the outer rate eta, [d]
        m_i = sum over j of W_ij u_j                       W_ij     mixing weights, symmetric, i itself included
        theta_i = u_i + alpha (m_i - u_i) + gamma (u_i - b_i)
        b_i = u_i                                          b_i      u_i of the round before, at first theta_i, [d]

    with overlap > 0 messages also travel during the local steps, from where these began:
        u_i = theta_i + overlap (sum over j of W_ij theta_j - theta_i) + eta (x_i - theta_i)

alpha (W - 1) is the paper's -alpha Lambda, with lambda_ij = 2 W_ij. W is the topology's, or it is drawn:
one partner, 1/2 each, or the two neighbours in a random ring, 1/3 each, in each round.

Where curvatures are equal, the mean of the x_i does not depend on the graph: it is that of DiLoCo with nesterov, olr =
eta and beta = gamma. So is every worker, for any curvatures, if all compute the same gradients, or if the graph is
complete and gamma = 0. With tau = eta = alpha = 1 and gamma = overlap = 0 a round is a step of D-PSGD, gradient=first;
with alpha = 0 and overlap = 1 instead, gradient=before. With one partner, eta = alpha = 1 and gamma = overlap = 0 it is
a round of NoLoCo with olr = gamma = 1 and beta = 0.

A round multiplies a mode of the graph, where W has the eigenvalue 1 - l, by a root z of

    z^2 - r (1 - alpha l + gamma) z + r gamma = 0,         r = 1 - overlap l - eta e

e is the share of an error that local steps remove, 0 without gradients. Then, with gamma = 0, the two mixings contract
by 1 - overlap l and 1 - alpha l. With overlap = 0 the workers come together for alpha < 2 (1 + gamma) / (1 -
lambda_min(W)), without momentum by 1 - alpha l, and with the best, gamma = (1 - sqrt(alpha l))^2, by 1 - sqrt(alpha l):
the condition number of the graph becomes its square root. With random peers distances shrink in mean square for alpha <
2 (1 - gamma^2) / (1 + gamma - 2 gamma q), q the mean of all l but the first: p / (2 (p - 1)) with one partner and even
p.

Differences from the papers: all workers make tau steps. The last round may be shorter. The papers' weights of random
peers, their b_i of the first round and their defaults were not read, so these are ours. Of the second paper only the
abstract was read, which says of the two mixings that one overlaps with computing without staleness and one blocks, but
neither which vectors they mix nor how the outer momentum is kept.
Cost per worker: deg(i) N bytes in tau steps, twice as many with overlap and alpha > 0. Waits every tau steps for its
peers of the round. Time of a round: max(tau t, with overlap a + deg N / B) + a + deg N / B, the latter not with
alpha = 0.
A worker that fails (`cluster.failures`): its peers of the round wait until it is back, then theirs.
Output model: the mean of the x_i. One worker: DiLoCo with one worker, exactly SGD with eta = 1 and gamma = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dsgd.keys import check_options
from dsgd.streams import stream
from dsgd.topology import Topology
from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from torch import Tensor

PEERS = ("topology", "one", "two")


@dataclass(frozen=True)
class GASLoC(Algorithm):
    topology: Topology  # used with peers=topology
    tau: int = 20  # local steps of a round
    eta: float = 0.7  # outer rate
    alpha: float = 1.0  # step of the gossip
    gamma: float = 0.5  # momentum of the u_i
    peers: str = "topology"  # topology: the neighbours | one: a random partner | two: random neighbours in a ring
    overlap: float = 0.0  # step of another gossip, during the local steps
    seed: int = 0  # of the random peers: the run's
    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self, tau=">= 1", eta=">= 0", alpha=">= 0", gamma="in [0, 1)", peers=PEERS, overlap="in [0, 1]")

    @property
    def cycle(self) -> int:
        return self.tau if self.overlap else 1

    def check(self, nodes: int, lr: float, momentum: float) -> None:
        if self.peers == "topology" and not self.topology.is_symmetric:
            rule = "algo=gasloc needs an undirected topology that does not change, or algo.peers=one|two"
            raise ValueError(f"{rule}, got topology={self.topology.name}")

    def is_stable(self, eigenvalue: float) -> bool:
        """Return whether a mode of W with this eigenvalue, 1 - l, shrinks whatever share of an error local steps
        remove."""
        kept = 1 - self.overlap * (1 - eigenvalue)  # r without gradients; r - eta when they remove the whole error
        mixed = 1 - self.alpha * (1 - eigenvalue) + self.gamma
        return all(abs(r * mixed) < 1 + r * self.gamma for r in (kept, kept - self.eta))  # convex between the two

    def limit(self, nodes: int) -> float:
        """Return the gossip step below which the distances of at least two workers shrink, without gradients and with
        overlap = 0."""
        if self.peers == "topology":
            return 2 * (1 + self.gamma) / (1 - self.topology.least_eigenvalue)
        trace = nodes // 2 if self.peers == "one" or nodes == 2 else 2 * nodes / 3
        return 2 * (1 - self.gamma**2) / (1 + self.gamma - 2 * self.gamma * trace / (nodes - 1))

    def warning(self, nodes: int, momentum: float) -> str | None:
        if self.eta > (most := 2 * (1 + self.gamma) / (1 + 2 * self.gamma)):
            rule = f"with algo.gamma={self.gamma:g} at most {most:.4g} is stable"
            return f"algo.eta={self.eta:g} is too much where rounds are long: {rule}"
        if nodes == 1:
            return None
        if self.alpha == self.overlap == 0:
            return "algo.alpha=0 and algo.overlap=0 mix nothing: every worker trains alone"
        if self.overlap and self.peers == "topology" and not self.is_stable(self.topology.least_eigenvalue):
            rule = "lower algo.overlap or algo.gamma"
            return f"algo.overlap={self.overlap:g} lets the workers drift apart where rounds are long: {rule}"
        if self.alpha < (most := self.limit(nodes)):
            return None
        peers = f"topology={self.topology.name}" if self.peers == "topology" else f"nodes={nodes}"
        rule = f"with algo.gamma={self.gamma:g} and {peers} it must be < {most:.4g}"
        return f"algo.alpha={self.alpha:g} lets the workers drift apart: {rule}"

    def mixing_row(self, worker: Worker, turn: int, purpose: str = "pairs") -> Mapping[int, float]:
        """Return this worker's row of W in a round, counted from 0: {j: W_ij}, ascending j."""
        if self.peers == "topology":
            return self.topology.mixing_row(worker.rank)
        order = stream(purpose, self.seed, turn).permutation(worker.nodes).tolist()
        i = order.index(worker.rank)
        near = order[i - i % 2 : i - i % 2 + 2] if self.peers == "one" else [order[i - 1], *(order * 2)[i : i + 2]]
        return dict.fromkeys(sorted({*near}), 1 / len({*near}))

    async def mixture(self, worker: Worker, v: Tensor, row: Mapping[int, float]) -> Tensor:
        """Return the sum [d] over the row's j of W_ij v_j."""
        peers = sorted((j for j in row if j != worker.rank), key=lambda j: (j - worker.rank) % worker.nodes)
        vectors = {worker.rank: v} | await worker.exchange(v, peers)
        mean = v.new_zeros(v.shape)
        for j, w_ij in row.items():  # ascending j, i included: every engine must add in the same order
            mean.add_(vectors[j], alpha=w_ij)
        return mean

    async def train(self, worker: Worker) -> None:
        x, theta, before = worker.x, worker.keep("theta", worker.x), worker.keep("before", worker.x)
        arriving: Awaitable[Tensor] | None = None
        while not worker.done:
            turn = worker.steps // self.tau
            if self.overlap and worker.steps % self.tau == 0:
                row = self.mixing_row(worker, turn, "overlapped pairs")
                arriving = worker.start(self.mixture(worker, theta.clone(), row))
            worker.step(await worker.gradient(x))
            if worker.steps % self.tau and not worker.done:
                continue
            u = theta.lerp(x, self.eta)
            if arriving is not None:
                u.add_(await arriving - theta, alpha=self.overlap)
            mean = await self.mixture(worker, u, self.mixing_row(worker, turn)) if self.alpha else u
            theta.copy_(u.lerp(mean, self.alpha)).add_(u - before, alpha=self.gamma)
            before.copy_(u)
            x.copy_(theta)
