"""Vectors between two workers: exchanges, pulls, pushes, and questions that a peer's algorithm answers on arrival."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dsgd.engines.rules.task import Task
from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.network import Network, PortMessage
from dsgd.engines.sim.node import Node, PendingExchange, VectorMessage
from dsgd.worker import Ask, Exchange, Pull, Push


@dataclass(frozen=True, eq=False)
class Pairs:
    """Carry vectors from one worker to another. A worker that is down answers no pull, and vectors pushed to it are
    lost. An answer for a task that has failed meanwhile is discarded, and not counted."""

    _nodes: Sequence[Node]
    _loop: EventLoop
    _network: Network
    _message_bytes: float
    _count_staleness: Callable[[int], None]
    _answer: Callable[[Task[Any], Node, Tensor], Tensor]  # a peer's answer to the vector of a task
    _take: Callable[[Task[Any], Tensor], None]  # gives a task the answer that it waits for
    _store: int | None = None  # port of a store

    def exchange(self, task: Task[Any], request: Exchange) -> None:
        """Send the vectors of a task, and resume it with the vectors of all its sources. One vector for several targets
        goes to a store once, and from there to each of them: 2 a + N / B up + (p - 1) N / B down among p workers."""
        node, worker, size = task.owner, task.owner.worker, self._message_bytes * request.size
        rank, steps = worker.rank, worker.steps
        messages: list[PortMessage] = [
            (target, size, self._arrived, (self._nodes[target], rank, (vector, steps)))
            for target, vector in request.vectors.items()
        ]
        if self._store is not None and len(messages) > 1 and len(set(map(id, request.vectors.values()))) == 1:
            messages = [(self._store, size, self._network.send, (self._store, messages))]
        self._network.send(rank, messages)
        exchange = PendingExchange(task, request.sources)
        node.expect(exchange)
        if not exchange.missing:  # faster neighbours' vectors have already arrived, or none is expected
            self._loop.at(self._loop.now, self._complete_exchanges, node)

    def _arrived(self, node: Node, source: int, message: VectorMessage) -> None:
        if node.receive(source, message):
            self._complete_exchanges(node)

    def _complete_exchanges(self, node: Node) -> None:
        """Resume the tasks whose exchanges are complete."""
        while (exchange := node.completed()) is not None:
            received: dict[int, Tensor] = {}
            for source, message in exchange.arrived.items():
                assert message is not None
                received[source], steps = message
                self._count_staleness(self._nodes[source].worker.steps - steps)
            node.received += len(received)
            exchange.task.resume(received)

    def pull(self, task: Task[Any], request: Pull) -> None:
        """Resume a task with the vector that its peer has last published when the request arrives."""
        self._network.notify(task.owner.worker.rank, request.peer, self._serve_pull, task, request.peer)

    def _serve_pull(self, task: Task[Any], peer: int) -> None:
        rank = task.owner.worker.rank
        if self._nodes[peer].down:
            self._network.notify(peer, rank, task.resume, None)
            return
        vector, steps = self._nodes[peer].published
        self._network.send(peer, [(rank, self._message_bytes, self._pulled, (task, peer, vector, steps))])

    def _pulled(self, task: Task[Any], peer: int, vector: Tensor, steps: int) -> None:
        if task.closed:
            return
        self._count_staleness(self._nodes[peer].worker.steps - steps)
        task.owner.received += 1
        task.resume(vector)

    def push(self, task: Task[Any], request: Push) -> None:
        """Send a vector to a peer's inbox. The task is resumed when it is there, or lost."""
        worker = task.owner.worker
        arguments = (task, request.peer, request.vector, worker.steps)
        message = (request.peer, self._message_bytes * request.size, self._pushed, arguments)
        self._network.send_once(worker.rank, message, task.resume)

    def _pushed(self, task: Task[Any], peer: int, vector: Tensor, steps: int) -> None:
        if not self._nodes[peer].down:
            self._nodes[peer].inbox.append((vector, task.owner.worker.rank, steps))
        task.resume()

    def ask(self, task: Task[Any], request: Ask) -> None:
        """Send the vector of a task, and resume it with the answer, or None from a peer that is down."""
        worker = task.owner.worker
        arguments = (task, request, worker.steps)
        self._network.send(worker.rank, [(request.peer, self._message_bytes, self._asked, arguments)])

    def _asked(self, task: Task[Any], request: Ask, steps: int) -> None:
        asking, peer = task.owner.worker, self._nodes[request.peer]
        if peer.down:
            self._network.notify(request.peer, asking.rank, task.resume, None)
            return
        self._count_staleness(asking.steps - steps)
        peer.received += 1
        arguments = (task, peer, self._answer(task, peer, request.vector), peer.worker.steps)
        self._network.send(peer.worker.rank, [(asking.rank, self._message_bytes, self._answered, arguments)])

    def _answered(self, task: Task[Any], peer: Node, answer: Tensor, steps: int) -> None:
        if task.closed:  # the worker has failed since
            return
        self._count_staleness(peer.worker.steps - steps)
        task.owner.received += 1
        self._take(task, answer)
