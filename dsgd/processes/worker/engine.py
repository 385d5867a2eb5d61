"""A worker's engine in a process of its own: it answers requests by doing the work.

The algorithm's coroutines run in one thread, this one. Gradients, collectives and messages run in others and come back
as events, so that whatever was started goes on while a gradient is computed. Vectors move to the CPU for the pairwise
plane, and back.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from torch import Tensor

from dsgd.engine.task import Task
from dsgd.experiment import Experiment
from dsgd.processes.pairwise.plane import Plane, Unreachable
from dsgd.processes.worker.collectives import Averaging, CollectiveFailed
from dsgd.processes.worker.compute import Compute
from dsgd.streams import stream
from dsgd.worker import AllReduceMean, Call, Exchange, Gradient, MeanGradient, Pull, Push, Request, Worker

T = TypeVar("T")


class CannotGoOn(ConnectionError):
    """Something that the algorithm must have will not come. blame: the rank it should have come from, if known."""

    def __init__(self, text: str, blame: int | None = None) -> None:
        super().__init__(text)
        self.blame = blame


class Engine:
    """Implements `dsgd.worker.Engine` for one worker.

    tell: sends a small message to the coordinator. hand_in: sends it a snapshot, in the background.
    """

    def __init__(
        self,
        experiment: Experiment,
        rank: int,
        x: Tensor,
        buffers: Tensor,
        plane: Plane,
        compute: Compute,
        averaging: Averaging,
        tell: Callable[..., None],
        hand_in: Callable[[str, int, float, dict[str, Any], dict[str, Tensor], dict[str, Any]], None],
    ) -> None:
        self.experiment = experiment
        self.plane = plane
        self.compute = compute
        self.averaging = averaging
        self.tell = tell
        self.hand_in = hand_in
        self.worker = Worker(rank, experiment.nodes, x, stream("algorithm", experiment.seed, rank), self)
        self.buffers = buffers
        self.velocity: Tensor | None = None
        self.batches = 0
        self.events: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = SimpleQueue()
        self.total = (0, 0)  # samples of all workers, and how many steps of ours are among them, as last told
        self.staleness = [0, 0, 0]  # sum, count, largest
        self.missed = 0  # pulls and pushes that did not reach their peer
        self.ended = False
        self.communicating: list[tuple[float, float]] | None = [] if experiment.trace else None
        self._collective_calls = 0
        self._busy_s = 0.0  # in the coroutines themselves
        self._begun = 0.0
        self._mark_due = False
        self._checkpoint: tuple[str, int | None] | None = None
        self._task: Task[None] | None = None
        self._perform = {
            Gradient: self._gradient,
            MeanGradient: self._mean_gradient,
            AllReduceMean: self._all_reduce_mean,
            Exchange: self._exchange,
            Pull: self._pull,
            Push: self._push,
            Call: self._call,
        }

    # The loop

    def run(self, time_s: float) -> None:
        """Train until the algorithm ends or `leave` is called from an event. time_s: what the training clock shows
        now. Raises CannotGoOn."""
        self._begun = time.monotonic() - time_s
        self._task = Task(self.experiment.algo.train(self.worker), self, self.perform)
        self.events.put((self._task.resume, ()))
        while not self.ended:
            action, arguments = self.events.get()
            begin = time.monotonic()
            action(*arguments)
            if self._task.finished and not self.ended:
                if self._mark_due:
                    self._step_mark()
                self.leave()
                self.tell("ended", time_s=self.time_s, steps=self.worker.steps)
            self._busy_s += time.monotonic() - begin

    def leave(self) -> None:
        """Train no more; what is under way is dropped."""
        self.ended = True

    @property
    def time_s(self) -> float:
        """Seconds of the training clock: since the start, evaluation apart, which happens elsewhere."""
        return time.monotonic() - self._begun

    def perform(self, task: Task[Any], request: Request) -> None:
        if self._mark_due:  # a mark is at the same place of the algorithm in all workers, whatever has come to each
            self._step_mark()
        self._perform[type(request)](task, request)

    def _then(self, future: Future[Any], answer: Callable[[Future[Any]], None], computes: bool = False) -> None:
        """Call answer(future) in this thread when it is done."""
        begin = time.monotonic()

        def arrived(done: Future[Any]) -> None:
            if self.communicating is not None and not computes:
                self.communicating.append((begin, time.monotonic()))
            self.events.put((answer, (done,)))

        future.add_done_callback(arrived)

    # What a worker asks without waiting

    def start(self, worker: Worker, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
        task = Task(coroutine, self, self.perform)
        task.resume()
        return task

    def publish(self, worker: Worker) -> None:
        self.plane.publish(host(worker.x), worker.steps)

    def inbox(self, worker: Worker) -> list[Tensor]:
        return [vector.to(worker.x.device) for vector, _, _ in self.plane.inbox()]

    def done(self, worker: Worker) -> bool:
        if self._checkpoint is not None:
            self._take_checkpoint()
        total = self.experiment.total_samples
        if total is None:
            return False
        return (worker.steps * self.experiment.unit if self.experiment.algo.lockstep else self.samples) >= total

    @property
    def samples(self) -> int:
        """Of all workers together, as far as this one knows: its own are always counted."""
        samples, ours = self.total
        return samples + (self.worker.steps - ours) * self.experiment.batch_size

    def learning_rate(self, worker: Worker) -> float:
        experiment = self.experiment
        return experiment.learning_rate(worker.steps * experiment.unit if experiment.algo.lockstep else self.samples)

    def step(self, worker: Worker, g: Tensor) -> None:
        experiment = self.experiment
        rate = self.learning_rate(worker)
        self.velocity = experiment.optimizer.step(worker.x, g, self.velocity, rate)
        worker.steps += 1
        self.plane.set_steps(worker.steps)
        self.tell("steps", steps=worker.steps)
        if experiment.algo.lockstep:
            before, now = (worker.steps - 1) * experiment.unit, worker.steps * experiment.unit
            self._mark_due = now // experiment.mark_samples > before // experiment.mark_samples

    # Snapshots

    def counters(self) -> dict[str, Any]:
        """What this worker adds to the fields of a mark."""
        return {
            "bytes_sent": self.plane.bytes_sent + self._collective_bytes,
            "busy_s": self.compute.busy_s + self._busy_s,
            "staleness": list(self.staleness),
            "missed": self.missed,
        }

    def snapshot(self, key: str) -> None:
        """Hand in x as it is now; the algorithm does not notice."""
        vectors = {"x": host(self.worker.x).clone(), "buffers": host(self.buffers).clone()}
        if self.ended and self.communicating is not None:
            for name, spans in (("computing", self.compute.spans or []), ("communicating", self.communicating)):
                vectors[name] = torch.tensor(spans, dtype=torch.float64).flatten().sub_(self._begun)
        self.hand_in(key, self.worker.steps, self.time_s, self.counters(), vectors, {})

    def checkpoint_at(self, key: str, steps: int | None) -> None:
        """Hand in everything at the end of the next cycle, or of the one that ends with this step."""
        if self.ended or (steps is not None and self.worker.steps >= steps):
            self.tell("missed", key=key, steps=self.worker.steps)
        else:
            self._checkpoint = (key, steps)

    def _step_mark(self) -> None:
        self._mark_due = False
        self.snapshot(f"step:{self.worker.steps}")

    def _take_checkpoint(self) -> None:
        assert self._checkpoint is not None
        key, steps = self._checkpoint
        worker = self.worker
        if worker.steps % self.experiment.algo.cycle or (steps is not None and worker.steps < steps):
            return
        self._checkpoint = None
        if self._mark_due:  # it comes before the checkpoint that counts it
            self._step_mark()
        vectors = {f"kept.{name}": vector for name, vector in worker.kept.items()} | {"x": worker.x}
        vectors |= {"buffers": self.buffers} | ({} if self.velocity is None else {"velocity": self.velocity})
        copies = {name: host(vector).clone() for name, vector in vectors.items()}
        extra = {"batches": self.batches, "rng": worker.rng.bit_generator.state}
        self.hand_in(key, worker.steps, self.time_s, self.counters(), copies, extra)

    def restore(
        self, steps: int, batches: int, rng: dict[str, Any], vectors: dict[str, Tensor], counters: dict[str, Any]
    ) -> None:
        """Be what the worker was that handed in this checkpoint. counters: none at the start of a run."""
        worker = self.worker
        self.plane.bytes_sent, self._busy_s = counters.get("bytes_sent", 0), counters.get("busy_s", 0.0)
        self.staleness, self.missed = list(counters.get("staleness", (0, 0, 0))), counters.get("missed", 0)
        worker.steps, self.batches = steps, batches
        worker.rng.bit_generator.state = rng
        self.buffers.copy_(vectors["buffers"])
        worker.x.copy_(vectors["x"])
        if "velocity" in vectors:
            self.velocity = vectors["velocity"].to(worker.x.device, copy=True)
        for name, vector in vectors.items():
            if name.startswith("kept."):
                worker.keep(name.removeprefix("kept.")).copy_(vector)

    # Gradients and collectives

    def _gradient(self, task: Task[Any], request: Gradient) -> None:
        buffers = self.buffers.clone()  # a mark must not see those of a forward pass that goes on
        future = self.compute.gradient(request.at, buffers, self.worker.rank, self._next_batch())

        def answer(done: Future[Tensor]) -> None:
            self.buffers = buffers
            task.resume(done.result())

        self._then(future, answer, computes=True)

    def _mean_gradient(self, task: Task[Any], request: MeanGradient) -> None:
        self._must_be_lockstep("mean_gradient")
        buffers = self.buffers.clone()
        future = self.compute.mean_gradient(request.at, buffers, self.worker.rank, self._next_batch())
        self._collective_calls += 1

        def answer(done: Future[Tensor]) -> None:
            self.buffers = buffers
            task.resume(_result(done))

        self._then(future, answer, computes=True)

    def _all_reduce_mean(self, task: Task[Any], request: AllReduceMean) -> None:
        self._must_be_lockstep("all_reduce_mean")
        self._collective_calls += 1
        future = self.averaging.all_reduce_mean(request.vector)
        self._then(future, lambda done: task.resume(_result(done)))

    @property
    def _collective_bytes(self) -> int:
        """By the formula of the ring, which is what gloo and NCCL make of large vectors."""
        p, x = self.experiment.nodes, self.worker.x
        return round(self._collective_calls * 2 * (p - 1) / p * x.nbytes)

    def _next_batch(self) -> int:
        self.batches += 1
        return self.batches - 1

    def _must_be_lockstep(self, what: str) -> None:
        if not self.experiment.algo.lockstep:
            raise TypeError(f"{what} needs all workers: an algorithm that awaits it must say lockstep = True")

    # Pairs and servers

    def _exchange(self, task: Task[Any], request: Exchange) -> None:
        future = self.plane.exchange(host(request.vector), self.worker.steps, request.targets, request.sources)
        device = self.worker.x.device

        def answer(done: Future[dict[int, Tensor]]) -> None:
            received = _result(done)
            self._count(0, len(received))
            task.resume({source: vector.to(device) for source, vector in received.items()})

        self._then(future, answer)

    def _pull(self, task: Task[Any], request: Pull) -> None:
        def answer(done: Future[Any]) -> None:
            if isinstance(done.exception(), Unreachable):
                self.missed += 1
                task.resume(None)
                return
            pulled = done.result()
            self._count(pulled.peer_steps - pulled.steps)
            task.resume(pulled.vector.to(self.worker.x.device))

        self._then(self.plane.pull(request.peer), answer)

    def _push(self, task: Task[Any], request: Push) -> None:
        before = self.worker.steps

        def answer(done: Future[bool]) -> None:
            lost = isinstance(done.exception(), Unreachable)
            if lost or not done.result():
                self.missed += 1
            else:
                self._count(self.worker.steps - before)  # it is acknowledged on arrival
            task.resume()

        self._then(self.plane.push(request.peer, host(request.vector), before), answer)

    def _call(self, task: Task[Any], request: Call) -> None:
        p, k = self.experiment.nodes, self.experiment.algo.servers
        parts = [None] * k if request.vector is None else list(host(request.vector).tensor_split(k))
        answers: dict[int, Tensor | None] = {}

        def answer(shard: int, done: Future[Any]) -> None:
            answers[shard], staleness = _result(done)
            if request.vector is not None:
                self._count(staleness)
            if len(answers) == k:
                found = [answers[i] for i in range(k)]
                whole = [part for part in found if part is not None]
                task.resume(None if found[0] is None else torch.cat(whole).to(self.worker.x.device))

        for shard, part in enumerate(parts):
            future = self.plane.call(p + shard, request.operation, part, request.scalars)
            self._then(future, lambda done, shard=shard: answer(shard, done))

    def _count(self, staleness: int, times: int = 1) -> None:
        self.staleness[0] += staleness * times
        self.staleness[1] += times
        self.staleness[2] = max(self.staleness[2], staleness)


def host(vector: Tensor) -> Tensor:
    """The vector on the CPU: itself if it is there."""
    return vector.detach().to("cpu")


def _result(done: Future[T]) -> T:
    """The result of what the algorithm cannot go on without."""
    error = done.exception()
    if isinstance(error, Unreachable):
        raise CannotGoOn(str(error), error.rank) from error
    if isinstance(error, CollectiveFailed):
        raise CannotGoOn(str(error)) from error
    return done.result()
