"""Asynchronous DiLoCo: workers make local steps and send what they have moved; a server applies it as it arrives.

References: delayed Nesterov and local steps in proportion to speed (DyLU): Liu et al. 2024, arXiv 2401.09135. With
group > 1 HALoS, Kim et al. 2025, arXiv 2506.04531: workers of a region share a local server.

    each round of worker i:                                x_i   parameters of worker i, [d]
        s = x_i                                            g_i   stochastic gradient at x_i, [d]
        tau_i times:  x_i = x_i - lr g_i                   tau_i local steps, tau over how much slower i is than the
        x_i = update(s - x_i) of the server                      fastest, rounded down, at least 1
    server, update(D), delayed Nesterov:                   c     the server's parameters, [d]
        c = c - olr D;  S = S + D                          S     sum of the last differences, [d]
        with every buffer-th D:                            m     momentum, [d]
            m = beta m + S / buffer;  S = 0
            c = c - olr buffer beta m
        return c
    with local servers update is that of the group's, with local_olr, local_beta, local_buffer and c_l for c, and
    after every `updates` of its updates it sends what it has moved on:
        a = c_l when this was last done                    c_l   the local server's parameters, [d]
        c_l = (1 - mix) c_l + mix update(a - c_l) of the global server

With buffer = 1 the server makes Nesterov's steps. With one worker, olr = 1 and beta = 0 this is SGD.

Differences from the papers: the local server of a group is at its first worker, so that a message to it is one between
two workers, and sends on where this worker ends a round. The speeds are given, not measured. As in the code of HALoS,
what workers add to c_l while the answer of the global server is awaited reaches the global server with no later update.
The round under way at the end is lost, and so is what local servers have not sent on.
Cost per worker: N / tau_i bytes sent and received a step; a local server in one message as many for its group's
`updates`. Waits for the round trip to its server.
A worker that fails (`cluster.failures`): no worker waits. It comes back with c. A local server fails with its worker
and begins again with c; meanwhile its group goes on, and then sends what several rounds have moved. The global server
does not fail.
Output model: the global server's c. One worker: exactly SGD at the end of a round for olr = 1 and beta = 0.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from dsgd.keys import check_options
from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(eq=False)
class DelayedNesterov:
    """A server, or one shard of it: x, m, sum [d], and how many differences have come, in each number of `count`."""

    x: Tensor
    m: Tensor
    sum: Tensor
    count: Tensor
    olr: float
    beta: float
    buffer: int

    def update(self, D: Tensor) -> Tensor:
        """Apply a difference [d]. Returns a copy of x."""
        self.x.add_(D, alpha=-self.olr)
        self.sum.add_(D)
        self.count.add_(1)
        if int(self.count[0]) % self.buffer == 0:
            self.m.mul_(self.beta).add_(self.sum, alpha=1 / self.buffer)
            self.x.add_(self.m, alpha=-self.olr * self.buffer * self.beta)
            self.sum.zero_()
        return self.x.clone()


@dataclass(frozen=True)
class AsyncDiLoCo(Algorithm):
    tau: int = 8  # local steps of a round of the fastest worker
    # by rank, how much slower a worker is: 1 if not here
    slow_nodes: Mapping[int, float] = field(default_factory=dict[int, float])
    olr: float = 0.15  # rate of the (global) server's steps
    beta: float = 0.5  # momentum of the server
    buffer: int = 2  # differences between two steps with momentum
    group: int = 1  # workers of a region, with consecutive ranks, that share a local server; 1: there are none
    local_olr: float = 0.2  # the same of local servers
    local_beta: float = 0.9
    local_buffer: int = 16
    updates: int = 32  # of a local server between two of the global one
    mix: float = 0.25  # share of the global parameters in what a local server goes on with
    servers: ClassVar[int] = 1  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        check_options(self, tau=">= 1", buffer=">= 1", group=">= 1", local_buffer=">= 1", updates=">= 1")
        check_options(self, olr=">= 0", local_olr=">= 0", beta="in [0, 1)", local_beta="in [0, 1)", mix="in [0, 1]")
        if any(not 0 < factor < float("inf") for factor in self.slow_nodes.values()):
            raise ValueError(f"slow_nodes must have factors > 0, got {dict(self.slow_nodes)}")

    def check(self, nodes: int, lr: float, momentum: float) -> None:
        if nodes % self.group:
            raise ValueError(f"group must divide the number of nodes (nodes={nodes}), got {self.group}")

    def steps_of(self, worker: Worker) -> int:
        """Return how many local steps this worker makes in a round."""
        factors = [self.slow_nodes.get(rank, 1.0) for rank in range(worker.nodes)]
        return max(1, int(self.tau * min(factors) / factors[worker.rank]))

    async def train(self, worker: Worker) -> None:
        x, start, tau = worker.x, worker.keep("start", worker.x), self.steps_of(worker)
        host, merging = worker.rank - worker.rank % self.group, False

        async def merge() -> None:
            nonlocal merging
            merging = True
            local, last = worker.keep("local"), worker.keep("last")
            local.lerp_(await worker.call("update", last - local), self.mix)
            last.copy_(local)
            worker.keep("unmerged").zero_()
            merging = False

        sent: Awaitable[None] | None = None
        if worker.rank == host and self.group > 1:
            self.local_server(worker)
        while not worker.done:
            worker.step(await worker.gradient(x))
            if worker.steps % tau:
                continue
            if self.group == 1:
                c = await worker.call("update", start - x)
            elif worker.rank != host:
                c = await worker.ask(host, start - x)
            else:
                c = self.answer(worker, start - x)
                if not merging and worker.keep("unmerged")[0] >= self.updates:
                    sent = worker.start(merge())
            if c is not None:  # a local server that is down has no answer
                x.copy_(c)
                start.copy_(c)
        if sent is not None:
            await sent

    def local_server(self, worker: Worker) -> DelayedNesterov:
        """Return the local server that this worker has for its group. All that it consists of is kept."""
        x = worker.x
        counter = x.new_zeros(max(1, x.numel()))  # one for each number of x, as all that is kept: without numbers, one
        worker.keep("last", x)
        worker.keep("unmerged", counter)
        kept = (worker.keep("local", x), worker.keep("m"), worker.keep("sum"), worker.keep("count", counter))
        return DelayedNesterov(*kept, self.local_olr, self.local_beta, self.local_buffer)

    def answer(self, worker: Worker, v: Tensor) -> Tensor:
        server = self.local_server(worker)
        worker.keep("unmerged").add_(1)
        return server.update(v)

    def server(self, x: Tensor) -> DelayedNesterov:
        kept = (x, x.new_zeros(x.shape), x.new_zeros(x.shape), x.new_zeros(1))
        return DelayedNesterov(*kept, self.olr, self.beta, self.buffer)
