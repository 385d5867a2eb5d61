"""Elastic averaging SGD (EASGD) and its momentum variant (EAMSGD): workers and a centre pull each other by a spring.

Reference: Zhang, Choromanska, LeCun 2015, arXiv 1412.6651, Algorithms 1 and 2 (asynchronous). Minimises over all x_i
and c the sum over i of f(x_i) + (rho / 2) |x_i - c|^2: a weak spring and a long period let the workers explore.

    each step t of worker i:                               x_i    parameters of worker i, [d]
        s = x_i                                            c      the centre, on the server, [d]
        every tau steps, atomically at the server:         alpha  moving rate, lr rho; beta = p alpha
            e = alpha (s - c);  c = c + e                  tau    steps between two exchanges
            x_i = x_i - e                                  delta  momentum of EAMSGD, here `momentum`
        EASGD:   x_i = x_i - lr grad(s)
        EAMSGD:  v = delta v - lr grad(s + delta v);  x_i = x_i + v

Differences from the paper: fetch and push are one atomic call, so e is always made from the centre it is added to. With
momentum=null, step() may add the local optimiser's momentum (Jin et al. 2016 run it so); v is never exchanged. The
paper's synchronous variant, and the averaged variants of the centre, are not here.
Cost per worker: every tau steps one message of N bytes each way; the server sends and receives p times that. Waits for
the round trip to the server, and so for the server's port when p exceeds about tau t B / N.
Output model: the centre c. One worker is exactly SGD only with alpha = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from torch import Tensor

BETA = 0.9  # Zhang et al. 2015, section 5: alpha = 0.9 / p


@dataclass(frozen=True)
class EASGD(Algorithm):
    tau: int = 10  # longer: less traffic and more exploration
    alpha: float | None = None  # moving rate of one exchange; 0 cuts the spring. At most one of alpha, rho, beta
    rho: float | None = None  # spring constant, alpha = lr rho: follows the schedule
    beta: float | None = None  # alpha = beta / p; the default, 0.9
    momentum: float | None = None  # delta of EAMSGD; null: EASGD
    servers: int = 1  # shards of the centre, each on a node of its own

    def __post_init__(self) -> None:
        if self.tau < 1:
            raise ValueError(f"tau must be >= 1, got {self.tau}")
        if self.servers < 1:
            raise ValueError(f"servers must be >= 1, got {self.servers}")
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
    def needs_sgd(self) -> str | None:
        return None if self.momentum is None else "algo.momentum (EAMSGD's velocity is made of SGD's steps)"

    @property
    def conserves(self) -> str:
        return "workers and centre"

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
        while not worker.done:
            snapshot = x.clone()
            if worker.steps % self.tau == 0:
                x.sub_(await worker.call("exchange", snapshot, self.moving_rate(worker)))
            if delta is None or v is None:
                worker.step(await worker.gradient(at=snapshot))
            else:
                g = await worker.gradient(at=snapshot.add_(v, alpha=delta))
                before = x.clone()
                x.add_(v, alpha=delta)
                worker.step(g)
                v.copy_(x).sub_(before)

    def server(self, x: Tensor) -> Centre:
        return Centre(x)


class Centre:
    """The centre variable, or one shard of it."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def exchange(self, x_i: Tensor, alpha: float) -> Tensor:
        """Move the centre towards x_i and return the same displacement, for the worker to subtract."""
        e = (x_i - self.x).mul_(alpha)
        self.x.add_(e)
        return e
