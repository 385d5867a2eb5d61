"""Decoupled DiLoCo: a syncer merges each fragment of the parameters once a quorum has sent it; no learner waits.

Reference: Douillard et al. 2026, arXiv 2604.21428. In lock-step, with one outer step for all: `streaming`.

    each step t of learner i:                              x_i    parameters of learner i, [d]
        x_i = x_i - lr g_i                                 g_i    stochastic gradient at x_i, [d]
        when a fragment f leaves, every tau / P steps:     f      one of P fragments, each [d / P], in turn
            send x_if and n_i to the syncer                n_i    steps since learner i last took f over
        delay steps later, unless f still waits:
            x_if = theta_f, when it arrives                theta  the output model, at the syncer, [d]
    syncer, on x_if and n_i:
        D_i = theta_f - x_if                               w_i    weight: tokens x tokens per step, which with equal
        and at the first request for f, when at                   batches is in proportion to n_i
        least `quorum` learners have sent it:              v      momentum of the outer optimiser, [d]
            D = (sum w_i |D_i| / sum w_i) u / |u|,  u = sum w_i D_i / |D_i|
            v_f = beta v_f + D;  theta_f = theta_f - olr (D + beta v_f)

Norms and directions are averaged separately: a plain mean of p orthogonal differences would be shorter by sqrt(p). The
grace window lasts from the quorum to the first request for the fragment, at most `delay` steps. Learners that send
within it take part, and no learner waits. Later learners take part in the next merge. Below the quorum all learners
continue training. A learner that sends a fragment again before its merge adds nothing.

Differences from the paper: norms and directions are computed for a fragment, a range of the parameter vector, not for
layers. The grace window is not measured in seconds. The last fragments of a run may not be merged. With real processes,
a resumed syncer counts its quorum from zero.
Cost per worker: N / tau bytes sent and received a step, in bursts of N / P. Waits for nothing.
A worker that fails (`cluster.failures`): the others continue, and merge without it; changes it has not sent are lost.
It returns with theta. The syncer does not fail.
Output model: theta. One worker: SGD with an outer optimiser.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from dsgd.keys import check_options
from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from torch import Tensor


class Syncer:
    """The parameters x [d], and what learners have sent of each fragment since it was last merged."""

    def __init__(self, x: Tensor, fragments: int, quorum: int, olr: float, beta: float) -> None:
        self.x, self.v, self.direction = x, x.new_zeros(x.shape), x.new_zeros(x.shape)
        self.length, self.weight = x.new_zeros(fragments), x.new_zeros(fragments)
        self.waiting: list[set[int]] = [set() for _ in range(fragments)]
        self.quorum, self.olr, self.beta = quorum, olr, beta

    def part(self, vector: Tensor, f: float) -> Tensor:
        return vector.tensor_split(len(self.waiting))[int(f)]

    def send(self, x_f: Tensor, f: float, rank: float, steps: float) -> None:
        """Take a learner's fragment [d / P], unless an earlier one still waits."""
        waiting = self.waiting[int(f)]
        if rank in waiting:
            return
        waiting.add(int(rank))
        D = self.part(self.x, f) - x_f
        norm = float(D.square().sum()) ** 0.5
        self.length[int(f)] += steps * norm
        self.weight[int(f)] += steps
        if norm > 0:
            self.part(self.direction, f).add_(D, alpha=steps / norm)

    def fetch(self, f: float, rank: float) -> Tensor | None:
        """Merge a fragment that a quorum has sent. Returns a copy [d / P], or None while the learner's own is not
        merged."""
        waiting = self.waiting[int(f)]
        if len(waiting) >= self.quorum:
            self.merge(int(f))
        return None if rank in waiting else self.part(self.x, f).clone()

    def merge(self, f: int) -> None:
        x, v, direction = self.part(self.x, f), self.part(self.v, f), self.part(self.direction, f)
        norm = float(direction.square().sum()) ** 0.5
        D = direction * (float(self.length[f] / self.weight[f]) / norm if norm > 0 else 0.0)
        v.mul_(self.beta).add_(D)
        x.add_(D, alpha=-self.olr).add_(v, alpha=-self.olr * self.beta)
        direction.zero_()
        self.length[f] = self.weight[f] = 0
        self.waiting[f].clear()


@dataclass(frozen=True)
class Decoupled(Algorithm):
    tau: int = 24  # steps between two merges of a fragment
    fragments: int = 4  # into which the parameters are cut: more have smaller bursts
    delay: int = 2  # steps that hide the way to the syncer and back
    quorum: int = 1  # learners that a merge needs
    olr: float = 0.7  # rate of the outer steps
    beta: float = 0.9  # momentum of the outer steps, Nesterov's
    servers: ClassVar[int] = 1  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        check_options(self, tau=">= 1", quorum=">= 1", fragments=f"in [1, tau = {self.tau}]")
        check_options(self, delay=f"in [0, tau = {self.tau})", olr=">= 0", beta="in [0, 1)")

    def check(self, nodes: int, lr: float, momentum: float) -> None:
        if self.quorum > nodes:
            raise ValueError(f"quorum must be <= nodes = {nodes}, got {self.quorum}")

    @property
    def needs_layout(self) -> bool:
        return self.fragments > 1

    def check_layout(self, layout: Sequence[tuple[int, ...]]) -> None:
        if self.fragments > (d := sum(map(prod, layout))):
            raise ValueError(f"fragments must be <= {d} (the parameters of this model), got {self.fragments}")

    def leaving(self, step: int) -> list[int]:
        """Return the fragments that leave after a learner's step, counted from 1: f at (f + 1) tau / P of a round."""
        P = self.fragments
        return [f for f in range(P) if step > 0 and (step - (f + 1) * self.tau // P) % self.tau == 0]

    async def train(self, worker: Worker) -> None:
        x, parts, share = worker.x, worker.x.tensor_split(self.fragments), 1 / self.fragments
        begun = [worker.steps] * self.fragments  # when each fragment was last taken over
        sent: dict[int, Awaitable[None]] = {}
        arrived: list[tuple[int, Tensor]] = []

        async def send(f: int, n: int) -> None:
            await worker.call("send", parts[f].clone(), f, worker.rank, n, size=share)

        async def fetch(f: int, sending: Awaitable[None]) -> None:
            await sending
            theta_f = await worker.call("fetch", None, f, worker.rank, size=share)
            if theta_f is not None:
                arrived.append((f, theta_f))

        while not worker.done:
            for f, theta_f in arrived:
                parts[f].copy_(theta_f)
                begun[f] = worker.steps
            arrived.clear()
            worker.step(await worker.gradient(x))
            for f in self.leaving(worker.steps):
                sent[f] = worker.start(send(f, worker.steps - begun[f]))
            for f in self.leaving(worker.steps - self.delay):
                if f in sent:  # it may have left before this worker failed
                    worker.start(fetch(f, sent.pop(f)))

    def server(self, x: Tensor) -> Syncer:
        return Syncer(x, self.fragments, self.quorum, self.olr, self.beta)
