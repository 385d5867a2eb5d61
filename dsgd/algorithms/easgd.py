"""Elastic averaging SGD (EASGD) and its momentum variant (EAMSGD): workers and a centre pull each other by a spring.

Reference: Zhang, Choromanska, LeCun 2015, arXiv 1412.6651: section 3 (synchronous), Algorithms 1 and 2 (asynchronous),
section 4 (round robin). Minimises over all x_i and c the sum over i of f(x_i) + (rho / 2) |x_i - c|^2: a weak spring
and a long period let the workers explore.

    each step t of worker i:                               x_i    parameters of worker i, [d]
        s = x_i                                            c      the centre, [d]
        every tau steps:                                   alpha  moving rate, lr rho; beta = p alpha
            e = alpha (s - c);  c = c + e;  x_i = x_i - e  tau    steps between two exchanges
        EASGD:   x_i = x_i - lr grad(s)                    delta  momentum of EAMSGD, here `momentum`
        EAMSGD:  v = delta v - lr grad(s + delta v);  x_i = x_i + v

    async:        each worker at its own pace, atomically at a server that has c
    sync:         all workers at once:  c = c + sum_i e_i = (1 - beta) c + beta mean_i x_i
    round_robin:  one after the other, in the order of their ranks

Differences from the paper: fetch and push are one atomic call, so e is always made from the centre it is added to. sync
and round_robin have no server: every worker has a copy of c and changes it by the mean of an all-reduce, or c itself
goes round from worker to worker. With momentum=null, step() may add the local optimiser's momentum (Jin et al. 2016
run it so); v is never exchanged.
Cost per worker, every tau steps: async: one message of N bytes each way, the server p times that; waits for the round
trip, and so for the server's port when p exceeds about tau t B / N. sync: an all-reduce; waits for all workers.
round_robin: one message of N bytes; waits for its turn, which comes every max(tau t, p (a + N / B)).
A worker that fails (`cluster.failures`): async: no worker waits, and it returns with c and v = 0. If a server fails,
workers wait, and it returns with c of a checkpoint. sync: all wait until it is back; round_robin: all wait for its
turn.
Output model: the centre c. One worker is exactly SGD only with alpha = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsgd.keys import check_options
from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from torch import Tensor

VARIANTS = ("async", "sync", "round_robin")
BETA = 0.9  # Zhang et al. 2015, section 5: alpha = 0.9 / p


class Centre:
    """The centre variable, or one shard of it. x: [d]."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def exchange(self, x_i: Tensor, alpha: float) -> Tensor:
        """Move the centre towards x_i and return the same displacement, for the worker to subtract."""
        e = (x_i - self.x).mul_(alpha)
        self.x.add_(e)
        return e


async def exchange_at_once(worker: Worker, c: Tensor, x_i: Tensor, alpha: float) -> Tensor:
    """Move all copies of the centre c [d] by the sum over all workers of alpha (x_i - c); return this worker's copy."""
    mean = await worker.all_reduce_mean(x_i.clone())
    e = (x_i - c).mul_(alpha)
    c.lerp_(mean, worker.nodes * alpha)
    return e


async def exchange_in_turn(worker: Worker, c: Tensor, x_i: Tensor, alpha: float) -> Tensor:
    """Wait for the centre from the worker before, write the centre after this exchange to c [d], and pass it on.
    Returns the displacement."""
    before = (worker.rank - 1) % worker.nodes
    if worker.nodes > 1 and (worker.rank > 0 or worker.steps > 0):
        c.copy_((await worker.exchange(c, [], [before]))[before])
    e = Centre(c).exchange(x_i, alpha)
    await pass_on(worker, c)
    return e


async def pass_on(worker: Worker, c: Tensor) -> None:
    """Send the centre c [d] to the worker of the next rank; the last worker sends it to rank 0."""
    if worker.nodes > 1:
        await worker.exchange(c.clone(), [(worker.rank + 1) % worker.nodes], [])


@dataclass(frozen=True)
class EASGD(Algorithm):
    variant: str = "async"  # async | sync | round_robin
    tau: int = 10  # longer: less traffic and more exploration
    alpha: float | None = None  # moving rate of one exchange; 0 cuts the spring. At most one of alpha, rho, beta
    rho: float | None = None  # spring constant, alpha = lr rho: follows the schedule
    beta: float | None = None  # alpha = beta / p; the default, 0.9
    momentum: float | None = None  # delta of EAMSGD; null: EASGD
    servers: int = 1  # async: shards of the centre, each on a node of its own; the others have none: 0

    def __post_init__(self) -> None:
        check_options(self, variant=VARIANTS, tau=">= 1")
        if self.servers < (0 if self.lockstep else 1):
            raise ValueError(f"servers must be >= 1, got {self.servers}")
        if self.lockstep:
            if self.servers > 1:
                raise ValueError(f"servers must be 1 (unused) with algo.variant={self.variant}, got {self.servers}")
            object.__setattr__(self, "servers", 0)  # the workers hold the centre
        given = [name for name in ("alpha", "rho", "beta") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]} excludes {given[1]}: give at most one of alpha, rho, beta")
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be in [0, 1], got {self.alpha}")
        if self.rho is not None and not 0 <= self.rho < float("inf"):
            raise ValueError(f"rho must be >= 0, got {self.rho}")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")

    @property
    def lockstep(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.variant != "async"

    @property
    def output(self) -> str | None:
        return "centre" if self.lockstep else None

    @property
    def needs_sgd(self) -> str | None:
        return None if self.momentum is None else "algo.momentum (EAMSGD's velocity is made of SGD's steps)"

    @property
    def conserves(self) -> str | None:
        # without server calls, the step x + delta v cannot be distinguished from communication
        return None if self.lockstep and self.momentum is not None else "workers and centre"

    def check(self, nodes: int, lr: float, momentum: float) -> None:
        if self.beta is not None and not 0 <= self.beta <= nodes:
            raise ValueError(f"beta must be in [0, nodes={nodes}], so that alpha = beta / nodes <= 1, got {self.beta}")
        if self.rho is not None and lr * self.rho > 1:
            raise ValueError(f"rho must be <= 1 / lr = {1 / lr:g}, so that alpha = lr rho <= 1, got {self.rho}")
        if self.momentum is not None and momentum != 0:
            raise ValueError(f"momentum (EAMSGD's own) must be null, or optimizer.momentum 0, got {self.momentum}")

    def moving_rate(self, worker: Worker) -> float:
        if self.alpha is not None:
            return self.alpha
        if self.rho is not None:
            return worker.lr * self.rho
        return (BETA if self.beta is None else self.beta) / worker.nodes

    async def train(self, worker: Worker) -> None:
        x, delta = worker.x, self.momentum
        v = None if delta is None else worker.keep("v")
        if self.variant == "round_robin" and worker.steps > 0 and worker.rank == worker.nodes - 1:
            await pass_on(worker, worker.keep("centre"))  # train was restarted: the centre was on its way to rank 0
        while not worker.done:
            before_exchange = x
            if worker.steps % self.tau == 0:
                before_exchange = x.clone()
                x.sub_(await self.exchange(worker, before_exchange))
            if delta is None or v is None:
                worker.step(await worker.gradient(at=before_exchange))
            else:
                g = await worker.gradient(at=before_exchange.add(v, alpha=delta))
                before = x.clone()
                x.add_(v, alpha=delta)
                worker.step(g)
                v.copy_(x).sub_(before)

    async def exchange(self, worker: Worker, s: Tensor) -> Tensor:
        """Move the centre by e = alpha (s - c) and return e [d], for the worker to subtract."""
        alpha = self.moving_rate(worker)
        if self.variant == "async":
            return await worker.call("exchange", s, alpha)
        c = worker.keep("centre", worker.x)  # all workers start at the same x
        return await (exchange_at_once if self.variant == "sync" else exchange_in_turn)(worker, c, s, alpha)

    def server(self, x: Tensor) -> Centre:
        return Centre(x)
