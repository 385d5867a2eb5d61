"""Gossiping SGD: every tau steps a worker averages with one random peer; no server, no barrier.

Reference: Jin, Yuan, Iandola, Keutzer 2016, arXiv 1611.04581, pull-gossip and push-gossip.

    each step t of worker i:                               x_i   parameters of worker i, [d]
        every tau steps:                                   j     a random peer, never i itself
            pull:  x_i = (x_i + x_j) / 2                   tau   steps between two averagings
            push:  send x_i to j                           y     what others have pushed to i
        push:      for each y received:  x_i = (x_i + y) / 2
        x_i = x_i - lr g(x_i)                              g     stochastic gradient, [d]

Neither form keeps the mean of the x_i. Without steps (lr = 0) both do in expectation, if all workers are equally fast.
With steps neither does: a worker averages when it has just made a step, with vectors that are older, so every average
takes back a part of that step. The mean moves at less than the rate lr: at 0.67 of it by pulls and 0.84 by pushes, with
small steps, a little jitter and no latency (docs/explanation/many_workers.md). With two workers a pull is a full
average. A push that is lost changes nothing at either end.

Differences from the paper: a pushed vector is averaged in before the receiver's next gradient, not during one. A worker
starts a push only when its previous one has arrived, so a slow network cannot pile up messages. step() may add local
momentum, which is not averaged.
Cost per worker: every tau steps one message of N bytes (pull: and a small request). Waits: pull, for the round trip to
the peer's node (never for its training loop); push, for nothing but its own previous push.
A worker that fails (`cluster.failures`): pulls from it bring nothing and pushes to it are lost. It returns with the
parameters of a random peer.
Output model: the mean of the x_i. One worker: exactly SGD.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.keys import check_options
from dsgd.worker import Algorithm, Worker


@dataclass(frozen=True)
class Gossip(Algorithm):
    tau: int = 1
    mode: str = "pull"  # pull | push

    def __post_init__(self) -> None:
        check_options(self, tau=">= 1")
        if self.mode not in ("pull", "push"):
            raise ValueError(f"mode must be pull or push, got {self.mode!r}")

    def random_peer(self, worker: Worker) -> int:
        other = int(worker.rng.integers(worker.nodes - 1))
        return other + (other >= worker.rank)

    async def train(self, worker: Worker) -> None:
        x = worker.x
        sending = None
        while not worker.done:
            if worker.nodes > 1 and worker.steps % self.tau == 0:
                peer = self.random_peer(worker)
                if self.mode == "pull":
                    y = await worker.pull(peer)
                    if y is not None:  # a dead peer has nothing to average with
                        x.lerp_(y, 0.5)
                else:
                    if sending is not None:
                        await sending
                    sending = worker.start(worker.push(peer, x.clone()))
            for y in worker.inbox():
                x.lerp_(y, 0.5)
            if self.mode == "pull":
                worker.publish()
            worker.step(await worker.gradient(x))
            if self.mode == "pull":
                worker.publish()
