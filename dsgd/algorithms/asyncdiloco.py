"""Asynchronous DiLoCo: workers make local steps and send the change; a server applies each change as it arrives.

References: delayed Nesterov and local steps in proportion to speed (DyLU): Liu et al. 2024, arXiv 2401.09135. With
group > 1: HALoS, Kim et al. 2025, arXiv 2506.04531: workers of a region share a local server. With c_ok > -1: HeLoCo,
Al Asif et al. 2026, arXiv 2606.00271: differences are turned towards the momentum before they are applied.

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
    with local servers, update is the group server's, with local_olr, local_beta, local_buffer and c_l for c, and
    after every `updates` of its updates it sends its change to the global server:
        a = c_l when it last sent                          c_l   the local server's parameters, [d]
        c_l = (1 - mix) c_l + mix update(a - c_l) of the global server
    with c_ok > -1 each block of D, of one parameter tensor, is changed first:      u = D / |D|, v = m / |m|, cos = u·v
        conf = |D| / (|D| + kappa (1 - beta) |m|)
        cos >= c_ok:  D is left as it is
        cos < 0:      D = D - min(-k_s cos conf, beta_max) cos |D| v
        otherwise:    D = |D| w / |w|,   w = (1 - r) u + r v,   r = min(k_d (1 - cos) conf, 1)
    with delay_power > 0 then all of D:   D = D / (1 + late)^delay_power  late  updates since the worker got its c

With buffer = 1 the server makes Nesterov's steps. With one worker, olr = 1 and beta = 0, this is SGD.

Differences from the papers: a group's local server runs at the group's first worker, so a message to it travels between
two workers. It sends to the global server when this worker ends a round. The speeds are given, not measured. As in the
code of HALoS, changes that workers add to c_l while the global server's answer is in flight never reach the global
server. The round in progress at the end is lost, and so are changes that local servers have not sent. HeLoCo's momentum
is a moving average, here (1 - beta) m, so its momentum steps are shorter by 1 - beta at the same beta. Its delay
weights, its defaults and its text beyond these formulas were not read: delay_power is the polynomial of FedAsync (Xie
et al. 2019, arXiv 1903.03934), and the defaults are ours. A block whose D or m is 0 is left unchanged.
Cost per worker: N / tau_i bytes sent and received a step; a local server sends and receives N bytes for every `updates`
updates of its group. Waits for the round trip to its server.
A worker that fails (`cluster.failures`): no worker waits. It returns with c. A local server fails with its worker and
restarts with c. Meanwhile its group continues, and then sends the change of several rounds at once. The global server
does not fail. The delay of the first difference after a failure counts from the last c before it.
Output model: the global server's c. One worker: exactly SGD at the end of a round for olr = 1 and beta = 0.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
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


@dataclass(eq=False)
class HeLoCo(DelayedNesterov):
    """Turn differences towards m and weight them by their delays before applying them. The engine sets layout and
    staleness."""

    options: AsyncDiLoCo
    layout: Sequence[tuple[int, ...]] = ()
    staleness: int = 0

    def update(self, D: Tensor) -> Tensor:
        changed = D.clone()
        if self.options.c_ok > -1:
            ends = [*accumulate(map(prod, self.layout))][:-1]
            for block, m in zip(changed.tensor_split(ends), self.m.tensor_split(ends), strict=True):
                self.turn(block, m)
        return super().update(changed.mul_((1 + self.staleness) ** -self.options.delay_power))

    def turn(self, D: Tensor, m: Tensor) -> None:
        """Turn one block D [n] of a difference towards the block m [n] of the momentum, in place."""
        options, length, momentum = self.options, float(D.square().sum()) ** 0.5, float(m.square().sum()) ** 0.5
        if not (length > 0 and momentum > 0):
            return
        v = m / momentum
        cos = float((D / length * v).sum())
        conf = length / (length + options.kappa * (1 - self.beta) * momentum)
        if cos >= options.c_ok:
            return
        if cos < 0:
            D.sub_(v, alpha=min(-options.k_s * cos * conf, options.beta_max) * cos * length)
        else:
            D.div_(length).lerp_(v, min(options.k_d * (1 - cos) * conf, 1.0))
            D.mul_(length / float(D.square().sum()) ** 0.5)


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
    updates: int = 32  # updates of a local server between two updates of the global one
    mix: float = 0.25  # share of the global parameters in c_l after an update of the global server
    c_ok: float = -1.0  # HeLoCo: cosine with the momentum from which a block is left unchanged; -1: every block
    k_s: float = 1.0  # strength with which the part of a block against the momentum is removed
    beta_max: float = 1.0  # largest share of this part that is removed
    k_d: float = 0.5  # strength with which other blocks are turned towards the momentum
    kappa: float = 1.0  # weight of the momentum's length in the confidence
    delay_power: float = 0.0  # a difference that is s updates late counts (1 + s)^-delay_power
    servers: ClassVar[int] = 1  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        check_options(self, tau=">= 1", buffer=">= 1", group=">= 1", local_buffer=">= 1", updates=">= 1")
        check_options(self, olr=">= 0", local_olr=">= 0", beta="in [0, 1)", local_beta="in [0, 1)", mix="in [0, 1]")
        check_options(self, c_ok="in [-1, 1]", k_s=">= 0", beta_max="in [0, 1]", k_d=">= 0", kappa=">= 0")
        check_options(self, delay_power=">= 0")
        if self.group > 1 and (self.c_ok > -1 or self.delay_power > 0):
            raise ValueError(f"group must be 1 with algo.c_ok > -1 or algo.delay_power > 0, got {self.group}")
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
        state = (x, x.new_zeros(x.shape), x.new_zeros(x.shape), x.new_zeros(1), self.olr, self.beta, self.buffer)
        return HeLoCo(*state, self) if self.c_ok > -1 or self.delay_power > 0 else DelayedNesterov(*state)
