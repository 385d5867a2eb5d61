"""Questions of one worker to another, which its algorithm answers on arrival."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dsgd.engines.rules.task import Task
from dsgd.engines.sim.network import Network
from dsgd.engines.sim.node import Node
from dsgd.worker import Ask


class Asks:
    """Carry a vector to a peer, and its answer back: a message each way."""

    def __init__(
        self,
        nodes: Sequence[Node],
        network: Network,
        message_bytes: float,
        count_staleness: Callable[[int], None],
        answer: Callable[[Task[Any], Node, Tensor], Tensor],
        take: Callable[[Task[Any], Tensor], None],
    ) -> None:
        """answer: of a peer to the vector of a task. take: gives a task the answer that it waits for."""
        self._nodes = nodes
        self._network = network
        self._message_bytes = message_bytes
        self._count_staleness = count_staleness
        self._answer = answer
        self._take = take

    def send(self, task: Task[Any], request: Ask) -> None:
        """Send the vector of a task, which is resumed with the answer, None from a peer that is down."""
        worker = task.owner.worker
        arguments = (task, request, worker.steps)
        self._network.send(worker.rank, [(request.peer, self._message_bytes, self._arrived, arguments)])

    def _arrived(self, task: Task[Any], request: Ask, steps: int) -> None:
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
