"""Calls of workers to the shards of a parameter server, which may fail, and return with the state of their last
checkpoint or of a replica."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from torch import Tensor

from dsgd.cluster.failures import Outage
from dsgd.engines.rules.step_rules import Shard, joined, parts_of
from dsgd.engines.rules.task import Task
from dsgd.engines.sim.downtime import Downtime, next_outage
from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.network import Network, PortMessage
from dsgd.worker import Call

Answers = dict[int, Tensor | None]  # of the shards to one call, as they arrive


@dataclass(eq=False)
class ServerFailures:
    """Fail servers and start them again.

    A server that is down serves nothing: calls wait. With checkpoints, every `checkpoint_s` seconds from the start, it
    returns with the state of the latest one, and this shard's updates since then are lost. With 0 it has a replica, and
    loses nothing."""

    _shards: Sequence[Shard]
    _outages: Sequence[Iterator[Outage]]  # of each shard, until it has its state again
    _checkpoint_s: float
    _loop: EventLoop
    _downtime: Downtime

    def __post_init__(self) -> None:
        k = len(self._shards)
        self._waiting: list[list[tuple[Callable[..., None], Any]] | None] = [None] * k  # if down
        self._numbers = [0] * k  # of the latest checkpoints
        self._checkpoints = [self._state(shard) for shard in self._shards]

    def begin(self) -> None:
        """Let every server wait for its first failure."""
        for shard in range(len(self._shards)):
            self._await_failure(shard)

    def holds(self, shard: int, action: Callable[..., None], *arguments: Any) -> bool:
        """Return whether a server is down; if so, call action(*arguments) when it is back. If it is up, take its
        checkpoint if one is due: nothing has changed since its due time."""
        waiting = self._waiting[shard]
        if waiting is not None:
            waiting.append((action, arguments))
            return True
        self._take_checkpoint(shard)
        return False

    def _state(self, shard: Shard) -> tuple[Any, int]:
        """Return a copy of a server, and the number of its updates."""
        return (copy.deepcopy(shard.server) if self._checkpoint_s else None), shard.version

    def _take_checkpoint(self, shard: int) -> None:
        if not self._checkpoint_s:
            return
        number = int(self._loop.now / self._checkpoint_s)
        if number > self._numbers[shard]:
            self._numbers[shard], self._checkpoints[shard] = number, self._state(self._shards[shard])

    def _await_failure(self, shard: int) -> None:
        down_s, up_s = next_outage(self._outages[shard], self._loop.now)
        if down_s < inf:
            self._loop.at(down_s, self._fail, shard, up_s)

    def _fail(self, shard: int, up_s: float) -> None:
        self._take_checkpoint(shard)
        self._waiting[shard] = []
        self._downtime.servers.append((shard, self._loop.now, up_s))
        if self._checkpoint_s:
            failed, (server, version) = self._shards[shard], self._checkpoints[shard]
            self._downtime.lost_updates += failed.version - version
            failed.server = copy.deepcopy(server)
            self._checkpoints[shard] = (server, failed.version)
        self._loop.at(up_s, self._restart, shard)

    def _restart(self, shard: int) -> None:
        waiting, self._waiting[shard] = self._waiting[shard], None
        for action, arguments in waiting or ():
            action(*arguments)
        self._await_failure(shard)


@dataclass(frozen=True, eq=False)
class Servers:
    """Carry the parts of a call to all shards, have each of them served on arrival, and carry the answers back."""

    shards: Sequence[Shard]  # in order
    ports: Sequence[int]  # of each of them
    _loop: EventLoop
    _network: Network
    _message_bytes: float
    _count_staleness: Callable[[int], None]
    # has a shard answer its part of a call; returns the answer and its staleness
    _serve_part: Callable[[Task[Any], Call, int, Tensor | None], tuple[Tensor | None, int]]
    _take: Callable[[Task[Any], Tensor | None], None]  # gives a task the answer that it waits for
    failures: ServerFailures | None

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
        """Send messages through the network; messages to the sender's own port take no time."""
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
