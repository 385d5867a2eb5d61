"""Calls of workers to the shards of a parameter server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dsgd.engines.rules.shard import Shard, joined, parts_of
from dsgd.engines.rules.task import Task
from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.network import Network, PortMessage
from dsgd.engines.sim.server_failures import ServerFailures
from dsgd.worker import Call

Answers = dict[int, Tensor | None]  # of the shards to one call, as they arrive


class Servers:
    """Carry the parts of a call to all shards, have each of them served on arrival, and carry the answers back.

    shards: in order. ports: of each of them."""

    def __init__(
        self,
        shards: Sequence[Shard],
        ports: Sequence[int],
        loop: EventLoop,
        network: Network,
        message_bytes: float,
        count_staleness: Callable[[int], None],
        serve: Callable[[Task[Any], Call, int, Tensor | None], tuple[Tensor | None, int]],
        take: Callable[[Task[Any], Tensor | None], None],
        failures: ServerFailures | None,
    ) -> None:
        """serve: has a shard answer its part of a call; returns the answer and its staleness. take: gives a task the
        answer that it waits for."""
        self.shards = shards
        self.ports = ports
        self._loop = loop
        self._network = network
        self._message_bytes = message_bytes
        self._count_staleness = count_staleness
        self._serve_part = serve
        self._take = take
        self.failures = failures

    def call(self, task: Task[Any], request: Call) -> None:
        """Send a call to all shards. The task is resumed with their answers."""
        k, rank = len(self.shards), task.owner.worker.rank
        answers: Answers = {}
        if request.vector is None:
            for shard, port in enumerate(self.ports):
                self._network.notify(rank, port, self._serve, task, request, shard, None, answers)
            return
        size = request.size * self._message_bytes / k
        messages = [
            (self.ports[shard], size, self._serve, (task, request, shard, part, answers))
            for shard, part in enumerate(parts_of(request.vector, k))
        ]
        self.send(rank, messages)

    def send(self, port: int, messages: list[PortMessage]) -> None:
        """Send messages through the network; those to the sender's own port take no time."""
        for receiver, _, action, arguments in messages:
            if receiver == port:
                self._loop.at(self._loop.now, action, *arguments)
        leaving = [message for message in messages if message[0] != port]
        if leaving:
            self._network.send(port, leaving)

    def _serve(self, task: Task[Any], request: Call, shard: int, part: Tensor | None, answers: Answers) -> None:
        rank, failures = task.owner.worker.rank, self.failures
        if failures is not None and failures.holds(shard, self._serve, task, request, shard, part, answers):
            return
        answer, staleness = self._serve_part(task, request, shard, part)
        if part is not None:
            self._count_staleness(staleness)
        if answer is None:
            self._network.notify(self.ports[shard], rank, self._answered, task, shard, None, answers)
            return
        size = request.size * self._message_bytes / len(self.shards)
        self.send(self.ports[shard], [(rank, size, self._answered, (task, shard, answer, answers))])

    def _answered(self, task: Task[Any], shard: int, answer: Tensor | None, answers: Answers) -> None:
        answers[shard] = answer
        if len(answers) < len(self.shards) or task.closed:  # a failed worker does not receive
            return
        whole = joined(answers)
        task.owner.received += whole is not None
        self._take(task, whole)
