"""Downpour SGD: workers fetch parameters from a server and push it their gradients; no worker waits for another.

Reference: Dean et al. 2012, "Large scale distributed deep networks", NIPS, Algorithm 1. Also known as asynchronous SGD
with a parameter server. The gradients are stale: with p equal workers that take turns, by p - 1 updates.

    each step t of worker i:                               w     the worker's copy of the parameters, [d]
        every n_fetch steps:  w = fetch()                  c     the server's parameters, in shards, [d]
        g = gradient at w                                  acc   gradients since the last push, [d]
        acc = acc + g                                      G     sum of squared pushes, per coordinate (Adagrad)
        every n_push steps:   push(acc);  acc = 0          lr    learning rate
        w = w - lr g
    server, on acc:
        sgd:       c = c - lr acc
        momentum:  u = m u + acc;  c = c - lr u
        adagrad:   G = G + acc^2;  c = c - lr acc / sqrt(G + 1e-8)

Differences from the paper: fetch and push are awaited in the worker's own loop rather than run by threads of their own;
the local step is applied after the push, so that a counted sample is at the server when n_push = 1; no warm start by a
single replica (use a warm-up). A fetch discards local steps that were not pushed, as published. A push uses its current
rate for all of its gradients. Gradients that a worker has not pushed when the budget is used up are lost. step() may
add local momentum, which has an effect only between two fetches: none with n_fetch = 1, and the run then warns.
Cost per worker and step: N / n_push bytes sent, N / n_fetch received; the server p times that. Waits for the two round
trips.
A worker that fails (`cluster.failures`): no worker waits; gradients it has not pushed are lost. It returns with c. If a
server fails, workers wait, and it returns with c, u and G of a checkpoint.
Output model: the server's c. One worker: exactly SGD for n_push = n_fetch = 1 and the same optimiser at the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsgd.keys import check_options
from dsgd.worker import Algorithm, Worker

if TYPE_CHECKING:
    from torch import Tensor

RULES = ("sgd", "momentum", "adagrad")
EPS = 1e-8  # of adagrad


@dataclass(frozen=True)
class Downpour(Algorithm):
    n_push: int = 1  # steps whose gradients one push adds up
    n_fetch: int = 1  # steps between two fetches: larger, staler
    server_optimizer: str = "sgd"  # sgd | momentum | adagrad
    server_momentum: float = 0.9  # m, of server_optimizer=momentum
    servers: int = 1  # shards, each on a node of its own; they may be at different versions

    def __post_init__(self) -> None:
        check_options(self, n_push=">= 1", n_fetch=">= 1", servers=">= 1")
        check_options(self, server_optimizer=RULES, server_momentum="in [0, 1)")

    @property
    def needs_sgd(self) -> str:
        return "algo=downpour (its server makes the updates, algo.server_optimizer, and no decoupled decay reaches it)"

    @property
    def conserves(self) -> str | None:
        return "centre" if self.server_optimizer == "sgd" else None

    def warning(self, nodes: int, momentum: float) -> str | None:
        if momentum == 0:
            return None
        alone = "has no effect" if self.n_fetch == 1 else "acts between two fetches alone"
        return (
            f"optimizer.momentum={momentum:g} {alone} with algo=downpour algo.n_fetch={self.n_fetch}: a fetch discards "
            "local steps; algo.server_optimizer=momentum algo.server_momentum=... is momentum at the server"
        )

    async def train(self, worker: Worker) -> None:
        x = worker.x
        accumulated = worker.keep("accumulated")
        while not worker.done:
            if worker.steps % self.n_fetch == 0:
                x.copy_(await worker.call("fetch"))
            g = await worker.gradient(x)
            accumulated.add_(g)
            if (worker.steps + 1) % self.n_push == 0:
                await worker.call("push", accumulated.clone(), worker.lr)
                accumulated.zero_()
            worker.step(g)

    def server(self, x: Tensor) -> ParameterServer:
        return ParameterServer(x, self)


class ParameterServer:
    """The server's parameters, or one shard of them."""

    def __init__(self, x: Tensor, options: Downpour) -> None:
        self.x = x
        self.options = options
        self.state = None if options.server_optimizer == "sgd" else x.new_zeros(x.shape)  # u or G

    def fetch(self) -> Tensor:
        return self.x.clone()

    def push(self, acc: Tensor, lr: float) -> None:
        update = acc
        if self.options.server_optimizer == "momentum":
            assert self.state is not None
            self.state.mul_(self.options.server_momentum).add_(acc)
            update = self.state
        elif self.options.server_optimizer == "adagrad":
            assert self.state is not None
            self.state.addcmul_(acc, acc)
            update = acc / (self.state + EPS).sqrt_()
        self.x.add_(update, alpha=-lr)
