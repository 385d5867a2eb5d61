"""Perform an algorithm's requests to other nodes, and count their bytes, their staleness, and lost requests.

Requests are exchanges, pulls, pushes, questions, and calls of the servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from torch import Tensor

from dsgd.engines.dist.pairwise.plane import Plane, Unreachable
from dsgd.engines.dist.worker.device_vectors import DeviceVectors
from dsgd.engines.dist.worker.process import result_of
from dsgd.engines.rules.step_rules import joined, parts_of
from dsgd.engines.rules.task import Task
from dsgd.worker import Ask, Call, Exchange, Pull, Push, Worker

T = TypeVar("T")


class Traffic:
    """Counts the messages that one worker has begun, when its algorithm resumes: so a checkpoint counts a message at
    both ends or not at all. A process that replaces another continues its counters."""

    def __init__(self, rank: int, nodes: int) -> None:
        """nodes: workers and servers."""
        self._rank = rank
        self._sent, self._received = [0] * nodes, [0] * nodes  # bytes, by the nodes that sent and received them
        self._reduced = 0  # bytes of the vectors given to collectives
        self._staleness = [0, 0, 0]  # sum, count, largest
        self._missed = 0  # pulls, pushes and asks that failed

    def moved(self, source: int, target: int, vector: Tensor) -> None:
        """Count a vector that has gone from one node to another."""
        self._sent[source] += vector.nbytes
        self._received[target] += vector.nbytes

    def reduced(self, vector: Tensor) -> None:
        """Count a vector that this worker gives to a collective."""
        self._reduced += vector.nbytes

    def stale(self, staleness: int, times: int = 1) -> None:
        """Count the staleness of one message, in steps; of several with the same: times."""
        self._staleness[0] += staleness * times
        self._staleness[1] += times
        self._staleness[2] = max(self._staleness[2], staleness)

    def missed(self, sent: Tensor | None = None) -> None:
        """Count a message that failed. sent: the vector that has gone all the same, to a full inbox."""
        self._missed += 1
        if sent is not None:
            self._sent[self._rank] += sent.nbytes

    def fields(self) -> dict[str, Any]:
        """Return the counters as marks and checkpoints have them."""
        return {
            "sent": list(self._sent),
            "received": list(self._received),
            "reduced": self._reduced,
            "staleness": list(self._staleness),
            "missed": self._missed,
        }

    def restore(self, counters: Mapping[str, Any]) -> None:
        """Continue the counters of a process before this one; empty at the start of a run."""
        self._sent = list(counters.get("sent", self._sent))
        self._received = list(counters.get("received", self._received))
        self._reduced = counters.get("reduced", 0)
        self._staleness = list(counters.get("staleness", (0, 0, 0)))
        self._missed = counters.get("missed", 0)


@dataclass(frozen=True, eq=False)
class PairwiseRequests:
    """Performs the requests of one worker, and counts the bytes and the staleness of their messages.

    If the peer of a pull, push or ask is unreachable, the message counts as missed. If a peer of an exchange, or a
    server, is unreachable, CannotGoOn ends the run.

    then: calls its second argument, in the thread of the coroutines, once the future is done."""

    worker: Worker
    servers: int
    vectors: Plane | DeviceVectors
    traffic: Traffic
    then: Callable[[Future[Any], Callable[[Future[Any]], None]], None]

    def exchange(self, task: Task[Any], request: Exchange) -> None:
        future = self.vectors.exchange(request.vectors, self.worker.steps, request.sources)

        def answer(done: Future[dict[int, Tensor]]) -> None:
            received = result_of(done)
            for source, vector in received.items():
                self.traffic.moved(source, self.worker.rank, vector)
            self.traffic.stale(0, len(received))
            task.resume(received)

        self.then(future, answer)

    def pull(self, task: Task[Any], request: Pull) -> None:
        def answer(done: Future[Any]) -> None:
            if self._is_missed(task, done):
                return
            pulled = done.result()
            self.traffic.moved(request.peer, self.worker.rank, pulled.vector)
            self.traffic.stale(pulled.peer_steps - pulled.steps)
            task.resume(pulled.vector)

        self.then(self.vectors.pull(request.peer), answer)

    def _is_missed(self, task: Task[Any], done: Future[Any]) -> bool:
        """Check that the peer was unreachable; if so, count a missed message and resume the task without a vector."""
        if not isinstance(done.exception(), Unreachable):
            return False
        self.traffic.missed()
        task.resume(None)
        return True

    def push(self, task: Task[Any], request: Push) -> None:
        steps = self.worker.steps

        def answer(done: Future[bool]) -> None:
            lost = isinstance(done.exception(), Unreachable)
            if lost or not done.result():
                self.traffic.missed(None if lost else request.vector)
            else:
                self.traffic.moved(self.worker.rank, request.peer, request.vector)
                self.traffic.stale(self.worker.steps - steps)  # acknowledged on arrival
            task.resume()

        self.then(self.vectors.push(request.peer, request.vector, steps), answer)

    def ask(self, task: Task[Any], request: Ask) -> None:
        steps = self.worker.steps

        def answer(done: Future[Any]) -> None:
            if self._is_missed(task, done):
                return
            answered = done.result()
            self.traffic.moved(self.worker.rank, request.peer, request.vector)
            self.traffic.moved(request.peer, self.worker.rank, answered.vector)
            self.traffic.stale(self.worker.steps - steps)  # of the question, known by its answer
            self.traffic.stale(answered.peer_steps - answered.steps)
            task.resume(answered.vector)

        self.then(self.vectors.ask(request.peer, request.vector, steps), answer)

    def call(self, task: Task[Any], request: Call) -> None:
        p, k = self.worker.nodes, self.servers
        parts = parts_of(request.vector, k)
        answers: dict[int, Tensor | None] = {}

        def answer(shard: int, done: Future[Any]) -> None:
            answers[shard], staleness = result_of(done)
            for source, target, vector in (
                (self.worker.rank, p + shard, parts[shard]),
                (p + shard, self.worker.rank, answers[shard]),
            ):
                if vector is not None:
                    self.traffic.moved(source, target, vector)
            if request.vector is not None:
                self.traffic.stale(staleness)
            if len(answers) == k:
                task.resume(joined(answers))

        for shard, part in enumerate(parts):
            future = self.vectors.call(p + shard, request.operation, part, request.scalars)
            self.then(future, lambda done, shard=shard: answer(shard, done))


def between_events(
    events: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]], answer: Callable[[], T], limit_s: float
) -> T | None:
    """Return answer(), called by the thread that takes the events; None, without a call, if that thread does not reach
    it within limit_s seconds."""
    answered: Future[T] = Future()
    events.put((give_answer, (answered, answer)))
    try:
        return answered.result(limit_s)
    except TimeoutError:
        return None if answered.cancel() else answered.result()


def give_answer(answered: Future[T], answer: Callable[[], T]) -> None:
    """Answer, unless the peer no longer waits."""
    if answered.set_running_or_notify_cancel():
        answered.set_result(answer())
