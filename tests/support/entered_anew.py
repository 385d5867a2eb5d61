"""Lock-step algorithms without any engine: their coroutines, gradients that are no linear function of the parameters,
and what real processes store of a worker where it asks whether it is done.

A worker of real processes that resumes enters `train` anew, with x, the kept vectors, the optimizer's state, its random
stream and its counters as they were at a call of `worker.done`. Nothing else of the coroutine survives."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dsgd.engines.rules.task import Task, start
from dsgd.streams import stream
from dsgd.worker import Algorithm, AllReduceMean, Busy, Exchange, Gradient, MeanGradient, MeanOfFirst, Request, Worker

T = TypeVar("T")
LAYOUT = ((3, 4), (5,))  # a matrix and a vector, as codes of layers need
D, LR, MOMENTUM = 17, 0.05, 0.9


@dataclass(frozen=True)
class Stored:
    """What a checkpoint has of a worker. batches: gradients that it has begun."""

    steps: int
    batches: int
    x: Tensor
    kept: Mapping[str, Tensor]
    velocity: Tensor | None
    rng: Mapping[str, Any]


class LockstepRun:
    """All workers of a run of some steps. Implements `dsgd.worker.Engine`.

    stored: by steps, then by rank: the state at the first call of `done` after so many steps, and at the last."""

    def __init__(self, algo: Algorithm, nodes: int, steps: int, states: Sequence[Stored] | None = None) -> None:
        self.algo, self.nodes, self.steps = algo, nodes, steps
        self.workers = [
            Worker(rank, nodes, torch.linspace(-1, 1, D, dtype=torch.float64), _random(rank), self, LAYOUT)
            for rank in range(nodes)
        ]
        self.velocities: list[Tensor | None] = [None] * nodes
        self.batches = [0] * nodes
        self.first, self.last = ([dict[int, Stored]() for _ in range(nodes)] for _ in range(2))
        self._ready = deque[Callable[[], None]]()
        self._means = [deque[tuple[Task[Any], Tensor]]() for _ in range(nodes)]
        self._letters = {(a, b): deque[Tensor]() for a in range(nodes) for b in range(nodes)}
        self._receivers = [deque[tuple[Task[Any], Sequence[int]]]() for _ in range(nodes)]
        for worker, state in zip(self.workers, states or (), strict=bool(states)):
            self._restore(worker, state)

    def run(self) -> LockstepRun:
        """Run to the end. Raises AssertionError if a worker waits for something that never happens."""
        tasks = [Task(self.algo.train(worker), worker, self._perform) for worker in self.workers]
        self._ready.extend(task.resume for task in tasks)
        while self._ready:
            self._ready.popleft()()
            self._average()
            self._deliver()
        assert all(task.finished for task in tasks)
        return self

    def results(self) -> list[Tensor]:
        """Return x and the kept vectors of all workers."""
        kept = [worker.kept[name] for worker in self.workers for name in sorted(worker.kept)]
        return [*(worker.x for worker in self.workers), *kept]

    # Requests

    def _perform(self, task: Task[Any], request: Request) -> None:
        rank = task.owner.rank
        if isinstance(request, (Gradient, MeanGradient, MeanOfFirst)):
            g = _gradient(request.at, rank, self.batches[rank])
            self.batches[rank] += 1
            if isinstance(request, Gradient):
                self._ready.append(partial(task.resume, g))
            else:
                self._means[rank].append((task, g))
        elif isinstance(request, AllReduceMean):
            self._means[rank].append((task, request.vector.clone()))
        elif isinstance(request, Exchange):
            for target, vector in request.vectors.items():
                self._letters[rank, target].append(vector.clone())
            self._receivers[rank].append((task, tuple(request.sources)))
        elif isinstance(request, Busy):
            self._ready.append(task.resume)
        else:
            raise TypeError(f"{type(request).__name__} is no request of a method in lock-step without servers")

    def _average(self) -> None:
        while all(self._means):
            entered = [waiting.popleft() for waiting in self._means]
            mean = torch.stack([vector for _, vector in entered]).mean(0)
            self._ready.extend(partial(task.resume, mean.clone()) for task, _ in entered)

    def _deliver(self) -> None:
        for rank, receivers in enumerate(self._receivers):
            while receivers and all(self._letters[source, rank] for source in receivers[0][1]):
                task, sources = receivers.popleft()
                answer = {source: self._letters[source, rank].popleft() for source in sources}
                self._ready.append(partial(task.resume, answer))

    # Calls of a worker that take no time

    def start(self, worker: Worker, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
        return start(coroutine, worker, self._perform)

    def done(self, worker: Worker) -> bool:
        if worker.steps % self.algo.cycle == 0 and worker.steps < self.steps:
            state = self._state(worker)
            self.first[worker.rank].setdefault(worker.steps, state)
            self.last[worker.rank][worker.steps] = state
        return worker.steps >= self.steps

    def learning_rate(self, worker: Worker) -> float:
        return LR

    def step(self, worker: Worker, g: Tensor) -> None:
        v = self.velocities[worker.rank]
        v = g.clone() if v is None else MOMENTUM * v + g
        worker.x -= LR * (g + MOMENTUM * v)
        self.velocities[worker.rank] = v
        worker.steps += 1

    def remembered(self, worker: Worker) -> Sequence[Tensor]:
        v = self.velocities[worker.rank]
        return [] if v is None else [v]

    def forget(self, worker: Worker) -> None:
        self.velocities[worker.rank] = None

    def publish(self, worker: Worker) -> None:
        raise TypeError("publish is no call of a method in lock-step")

    def inbox(self, worker: Worker) -> list[Tensor]:
        raise TypeError("inbox is no call of a method in lock-step")

    # Stored states

    def _state(self, worker: Worker) -> Stored:
        velocity = self.velocities[worker.rank]
        kept = {name: vector.clone() for name, vector in worker.kept.items()}
        return Stored(
            worker.steps,
            self.batches[worker.rank],
            worker.x.clone(),
            kept,
            None if velocity is None else velocity.clone(),
            worker.rng.bit_generator.state,
        )

    def _restore(self, worker: Worker, state: Stored) -> None:
        worker.steps, self.batches[worker.rank] = state.steps, state.batches
        worker.x.copy_(state.x)
        worker.kept = {name: vector.clone() for name, vector in state.kept.items()}
        worker.rng.bit_generator.state = state.rng
        self.velocities[worker.rank] = None if state.velocity is None else state.velocity.clone()


def _random(rank: int) -> np.random.Generator:
    return stream("entered anew", rank)


def _gradient(at: Tensor, rank: int, batch: int) -> Tensor:
    """Return the gradient [d] of sum_k w_k log cosh(a_k x - b_k), with numbers of this rank and mini-batch."""
    random = stream("mini-batch", rank, batch)
    a, b = (torch.from_numpy(random.standard_normal(shape)) for shape in ((8, D), 8))
    return a.T @ torch.tanh(a @ at - b) / 8
