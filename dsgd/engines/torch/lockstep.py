"""Run an algorithm's coroutines from one gradient to the next, and communicate over a process group."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

import torch
from torch import Tensor

from dsgd.engines.rules.task import Task, start
from dsgd.engines.torch.group_channel import GroupChannel, Wait
from dsgd.worker import Algorithm, AllReduceMean, Busy, Engine, Exchange, Gradient, MeanGradient, Request, Worker

T = TypeVar("T")


AT_X = torch.empty(0)  # the point x, for a gradient that needs no vector of it


class LocalSteps(Protocol):
    """The local optimiser of a rank, and its budget."""

    def done(self, worker: Worker) -> bool: ...
    def learning_rate(self, worker: Worker) -> float: ...
    def step(self, worker: Worker, g: Tensor) -> None:
        """Make a step on `worker.x`, and count it."""
        ...

    def remembered(self) -> Sequence[Tensor]: ...
    def forget(self) -> None: ...


@dataclass(slots=True)
class Operation:
    """A request under way, the task that waits for it, and the function that waits for the answer. begun: steps at its
    start."""

    task: Task[Any]
    request: AllReduceMean | Exchange
    wait: Wait
    begun: int


class LockstepWorker:
    """Drive the coroutines of one rank. Implements `dsgd.worker.Engine`.

    Operations start when the algorithm requests them, and overlap with the next gradients. The algorithm's awaits wait
    for them in the order of their start: the same order on every rank, as process groups require. asked: the gradient
    that the algorithm waits for; None: it has ended. between: called before every request, while nothing changes x.
    staleness: (sum, count, largest) of means and exchanged vectors when the algorithm receives them."""

    def __init__(
        self, algo: Algorithm, worker_of: Callable[[Engine], Worker], channel: GroupChannel, local: LocalSteps
    ) -> None:
        self.algo, self.channel, self.local = algo, channel, local
        self.worker = worker_of(self)
        self.asked: Gradient | MeanGradient | None = None
        self.between: Callable[[], None] = lambda: None
        self.staleness = [0, 0, 0]
        self._asking: Task[Any] | None = None
        self._under_way = deque[Operation]()
        self._entering = False  # True: requests are answered here, to reach the point of a stored state
        self._main: Task[None] | None = None
        self._rng_at_entry: Mapping[str, Any] = self.worker.rng.bit_generator.state

    @property
    def is_begun(self) -> bool:
        return self._main is not None

    def begin(self) -> None:
        """Run the algorithm to its first gradient."""
        self._main = Task(self.algo.train(self.worker), self, self._perform)
        self._main.resume()
        self._advance()

    def answer(self, g: Tensor) -> None:
        """Give the algorithm its gradient g [d], and run it to the next request of a gradient or to its end."""
        assert self._asking is not None
        task, self._asking, self.asked = self._asking, None, None
        task.resume(g)
        self._advance()

    def _advance(self) -> None:
        assert self._main is not None
        while self.asked is None and not self._main.finished:
            if not self._under_way:
                raise RuntimeError(f"rank {self.worker.rank} waits for something that never happens")
            self._end(self._under_way.popleft())

    def _end(self, operation: Operation) -> None:
        """Wait for an operation, and give its task the answer."""
        answer = operation.wait()
        if isinstance(operation.request, Exchange):
            self._count(0, len(answer))
        elif operation.task is self._main:
            self._count(self.worker.steps - operation.begun)
        else:
            operation.task.when_taken(lambda: self._count(self.worker.steps - operation.begun))
        operation.task.resume(answer)

    def _count(self, staleness: int, times: int = 1) -> None:
        total, count, largest = self.staleness
        self.staleness = [total + staleness * times, count + times, max(largest, staleness)]

    def _perform(self, task: Task[Any], request: Request) -> None:
        self.between()
        if isinstance(request, (Gradient, MeanGradient)):
            if self.asked is not None or not (request.at is AT_X or _same(request.at, self.worker.x)):
                raise TypeError("an algorithm that takes gradients elsewhere than at x needs engine=dist")
            self.asked, self._asking = request, task
        elif isinstance(request, Busy):
            task.resume()
        elif isinstance(request, (AllReduceMean, Exchange)):
            wait = _own_answer(request) if self._entering else self.channel.start(request, self.worker.steps)
            self._under_way.append(Operation(task, request, wait, self.worker.steps))
        else:
            self._refuse(type(request).__name__)

    def finish(self) -> None:
        """Wait for the operations in flight, and drop their answers: a process group must not end before its
        operations. All ranks must make this call."""
        while self._under_way:
            self._under_way.popleft().wait()

    def output(self) -> Tensor:
        """Return the output model [d]. All ranks must make this call."""
        name, kept = self.algo.output, self.worker.kept
        if name is not None and name in kept:
            last = self.channel.nodes - 1
            return self.channel.from_rank(last, kept[name].clone(), "the broadcast of the output model")
        return self.channel.mean(self.worker.x.clone(), "the average of the output model")

    # A stored state

    def state(self) -> dict[str, Any]:
        """Return copies of the state from which the algorithm resumes, without x and the local optimiser.

        Raises ValueError within a cycle of the algorithm, where `train` cannot start again."""
        if self.worker.steps % self.algo.cycle:
            rule = f"a state is stored after a multiple of {self.algo.cycle} steps (a cycle of the algorithm)"
            raise ValueError(f"{rule}, got {self.worker.steps}")
        return {
            **self._identity(),
            "steps": self.worker.steps,
            "rng": dict(self._rng_at_entry),
            "kept": {name: vector.clone() for name, vector in self.worker.kept.items()},
            "under_way": [[vector.clone() for vector in _vectors(each.request)] for each in self._under_way],
        }

    def _identity(self) -> dict[str, Any]:
        return {"algo": type(self.algo).__name__, "rank": self.worker.rank, "nodes": self.worker.nodes}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless a stored state is of this algorithm and this rank."""
        if wrong := {key: here for key, here in self._identity().items() if state[key] != here}:
            rule = ", ".join(f"{key}={here}" for key, here in wrong.items())
            raise ValueError(f"state must be of {rule}, got {', '.join(f'{key}={state[key]}' for key in wrong)}")

    def restore(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Resume from a stored state. The caller restores x afterwards.

        `train` starts again as at the beginning of a cycle. Then the stored state overwrites its changes up to the next
        gradient. Messages that were in flight are sent again."""
        self.finish()  # operations of this worker's first start
        worker = self.worker
        worker.steps = state["steps"]
        worker.rng.bit_generator.state = state["rng"]
        worker.kept = {name: vector.to(device, copy=True) for name, vector in state["kept"].items()}
        self.asked, self._entering = None, True
        self.begin()
        self._entering = False
        for name, vector in state["kept"].items():
            worker.kept[name].copy_(vector)
        for operation, vectors in zip(self._under_way, state["under_way"], strict=True):
            operation.request = _with_vectors(operation.request, [vector.to(device) for vector in vectors])
            operation.wait = self.channel.start(operation.request, worker.steps)

    # Calls of a worker that take no time

    def start(self, worker: Worker, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
        return start(coroutine, self, self._perform)

    def done(self, worker: Worker) -> bool:
        self._rng_at_entry = worker.rng.bit_generator.state
        return self.local.done(worker)

    def learning_rate(self, worker: Worker) -> float:
        return self.local.learning_rate(worker)

    def step(self, worker: Worker, g: Tensor) -> None:
        self.local.step(worker, g)

    def remembered(self, worker: Worker) -> Sequence[Tensor]:
        return self.local.remembered()

    def forget(self, worker: Worker) -> None:
        self.local.forget()

    def publish(self, worker: Worker) -> None:
        self._refuse("publish")

    def inbox(self, worker: Worker) -> list[Tensor]:
        self._refuse("inbox")

    def _refuse(self, name: str) -> NoReturn:
        raise TypeError(f"{name} needs engine=dist: process groups serve lock-step algorithms alone")


def _same(at: Tensor, x: Tensor) -> bool:
    """Return whether two vectors are equal, with NaN equal to NaN."""
    return at is x or torch.equal(at, x) or torch.allclose(at, x, rtol=0, atol=0, equal_nan=True)


def _vectors(request: AllReduceMean | Exchange) -> list[Tensor]:
    return [request.vector] if isinstance(request, AllReduceMean) else list(request.vectors.values())


def _with_vectors(request: AllReduceMean | Exchange, vectors: Sequence[Tensor]) -> AllReduceMean | Exchange:
    """Return the same request for other vectors."""
    if isinstance(request, AllReduceMean):
        return AllReduceMean(vectors[0], request.size)
    return Exchange(dict(zip(request.vectors, vectors, strict=True)), request.sources, request.size)


def _own_answer(request: AllReduceMean | Exchange) -> Wait:
    """Answer a request without communication, with vectors of the right length."""
    vectors = _vectors(request)
    if isinstance(request, AllReduceMean):
        return vectors[0].clone
    return lambda: {source: vectors[0].clone() for source in request.sources}
