"""The engine of a worker in its own process: it answers an algorithm's requests by doing the work.

The algorithm's coroutines run in the thread that calls `WorkerEngine.run`. Gradients, collectives and messages run in
other threads and return as events.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from torch import Tensor

from dsgd.engines.dist.pairwise.plane import Plane
from dsgd.engines.dist.worker.averaging import Averaging, finish_work
from dsgd.engines.dist.worker.compute import Compute
from dsgd.engines.dist.worker.device_vectors import DeviceVectors
from dsgd.engines.dist.worker.pairwise_requests import PairwiseRequests, Traffic, between_events
from dsgd.engines.dist.worker.pass_record import interval_vector
from dsgd.engines.dist.worker.process import CoordinatorClient, result_of
from dsgd.engines.dist.worker.quorum_steps import QuorumMember, Taken
from dsgd.engines.rules.marks import Diverged
from dsgd.engines.rules.step_rules import StepRules
from dsgd.engines.rules.task import Task, start
from dsgd.experiment import Experiment
from dsgd.host.gpu_facts import peak_bytes
from dsgd.optim.optimizer import State, state_vectors
from dsgd.problem.problem import Problem
from dsgd.streams import stream
from dsgd.worker import (
    AllReduceMean,
    Ask,
    Busy,
    Call,
    Exchange,
    Gradient,
    MeanGradient,
    MeanOfFirst,
    Pull,
    Push,
    Request,
    Worker,
)

T = TypeVar("T")


class WorkerEngine:
    """Implements `dsgd.worker.Engine` for one worker."""

    def __init__(
        self,
        experiment: Experiment,
        rank: int,
        x: Tensor,
        buffers: Tensor,
        plane: Plane,
        vectors: Plane | DeviceVectors,
        compute: Compute,
        averaging: Averaging,
        client: CoordinatorClient,
        problem: Problem,
    ) -> None:
        self.experiment = experiment
        self.rules = StepRules(experiment, problem.matrices)
        self.plane = plane
        self.vectors = vectors  # sends vectors of the worker's device
        self.compute = compute
        self.averaging = averaging
        self.client = client
        self.worker = Worker(
            rank, experiment.nodes, x, stream("algorithm", experiment.seed, rank), self, problem.layout
        )
        self.buffers = buffers
        self.optimizer_state: State | None = None
        self.batches = 0
        self.events: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = SimpleQueue()
        self.total = (0, 0)  # samples of all workers, and steps of this one among them, as last received
        self.traffic = Traffic(rank, experiment.nodes + experiment.algo.servers)
        self.ended = False  # True: the loop stops, and pending requests are dropped
        self.communicating: list[tuple[float, float]] | None = [] if experiment.trace else None
        self._busy_s = 0.0  # time spent in the coroutines
        self._begun = 0.0
        self._mark_due = False
        self._checkpoint: tuple[str, int | None] | None = None
        self._task: Task[None] | None = None
        self.quorum = QuorumMember(self.worker, client, partial(self._compute, compute.gradient), self._reduce)
        peers = PairwiseRequests(self.worker, experiment.algo.servers, vectors, self.traffic, self._then)
        self._perform = {
            Gradient: self._gradient,
            MeanGradient: self._mean_gradient,
            MeanOfFirst: self._mean_of_first,
            Busy: lambda task, request: self.events.put((task.resume, ())),
            AllReduceMean: self._all_reduce_mean,
            Exchange: peers.exchange,
            Pull: peers.pull,
            Push: peers.push,
            Ask: peers.ask,
            Call: peers.call,
        }

        vectors.answer_with(self._answer)

    # The loop

    def run(self, time_s: float) -> None:
        """Train until the algorithm ends or an event sets `ended`. time_s: the training clock now. Raises
        CannotGoOn."""
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
                self.ended = True
                finish_work(self.worker.x.device)  # the last steps may only be queued there
                self.client.send("ended", time_s=self.time_s, steps=self.worker.steps)
            self._busy_s += time.monotonic() - begin

    @property
    def time_s(self) -> float:
        """Seconds on the training clock. Evaluation happens in other processes and does not count."""
        return time.monotonic() - self._begun

    def perform(self, task: Task[Any], request: Request) -> None:
        if self._mark_due:  # at the same place of the algorithm in all workers, independent of arrived messages
            self._step_mark()
        self._perform[type(request)](task, request)

    def _then(self, future: Future[Any], answer: Callable[[Future[Any]], None], computes: bool = False) -> None:
        """Call answer(future) in the engine's thread once it is done. computes: it is no communication."""
        begin = time.monotonic()

        def arrived(done: Future[Any]) -> None:
            if self.communicating is not None and not computes:
                self.communicating.append((begin, time.monotonic()))
            self.events.put((answer, (done,)))

        future.add_done_callback(arrived)

    # Calls of a worker that take no time

    def start(self, worker: Worker, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
        return start(coroutine, self, self.perform)

    def publish(self, worker: Worker) -> None:
        self.vectors.publish(worker.x, worker.steps)

    def inbox(self, worker: Worker) -> list[Tensor]:
        return [vector for vector, _, _ in self.vectors.inbox()]

    def done(self, worker: Worker) -> bool:
        if self._checkpoint is not None:
            self._take_checkpoint()
        return self.rules.done(worker, self.samples)

    @property
    def samples(self) -> int:
        """Return the samples of all workers together, as far as this one knows; its own are always counted."""
        samples, ours = self.total
        return samples + (self.worker.steps - ours) * self.experiment.batch_size

    def learning_rate(self, worker: Worker) -> float:
        return self.rules.learning_rate(worker, self.samples)

    def step(self, worker: Worker, g: Tensor) -> None:
        self.optimizer_state = self.rules.step(worker, g, self.optimizer_state, self.samples)
        self.plane.set_steps(worker.steps)
        self._mark_due = self.rules.is_at_mark(worker)

    def remembered(self, worker: Worker) -> Sequence[Tensor]:
        return state_vectors(self.optimizer_state)

    def forget(self, worker: Worker) -> None:
        self.optimizer_state = None

    # Snapshots

    def counters(self) -> dict[str, Any]:
        """Return this worker's contribution to the fields of a mark."""
        return {
            **self.traffic.fields(),
            "busy_s": self.compute.passes.busy_s + self._busy_s,
            **peak_bytes(self.compute.devices),
        }

    def snapshot(self, key: str) -> None:
        """Submit copies of the present x and buffers; after the end with `trace`, also the spans."""
        vectors = {"x": self.worker.x, "buffers": self.buffers}
        output = self.experiment.algo.output
        if output in self.worker.kept and self.worker.rank == self.experiment.nodes - 1:
            vectors[f"kept.{output}"] = self.worker.kept[output]
        if self.ended and self.communicating is not None:
            for name, spans in (("computing", self.compute.passes.spans or []), ("communicating", self.communicating)):
                vectors[name] = interval_vector(name, spans, self._begun)
        self._submit(key, vectors, {})

    def _submit(self, key: str, vectors: dict[str, Tensor], extra: dict[str, Any]) -> None:
        copies = {name: vector.detach().to("cpu", copy=True) for name, vector in vectors.items()}
        fields = {"key": key, "steps": self.worker.steps, "time_s": self.time_s, "counters": self.counters()}
        self.client.submit({**fields, "extra": extra}, copies)

    def checkpoint_at(self, key: str, steps: int | None) -> None:
        """Submit the whole state after `steps` steps; None: at the end of the current cycle."""
        if self.ended or (steps is not None and self.worker.steps >= steps):
            self.client.send("missed", key=key, steps=self.worker.steps)
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
        if self.experiment.algo.lockstep and self.rules.done(worker, self.samples):
            return  # `train` may still have to average, which a restarted `train` would not do
        self._checkpoint = None
        if self._mark_due:  # before the checkpoint, whose counters include the mark
            self._step_mark()
        vectors = {f"kept.{name}": vector for name, vector in worker.kept.items()} | {"x": worker.x}
        state = self.optimizer_state or State({})
        vectors |= {"buffers": self.buffers} | state.vectors
        extra = {"batches": self.batches, "optimizer_steps": state.steps, "rng": worker.rng.bit_generator.state}
        self._submit(key, vectors, extra)

    def count_from(self, steps: int, counters: Mapping[str, Any]) -> None:
        """Continue the steps and counters of the resumed run."""
        self.traffic.restore(counters)
        self._busy_s = counters.get("busy_s", 0.0)
        self.worker.steps = self.batches = steps

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of this worker from a checkpoint."""
        worker, vectors = self.worker, state["vectors"]
        self.count_from(state["steps"], state["counters"])
        self.batches = state["batches"]
        worker.rng.bit_generator.state = state["rng"]
        self.buffers.copy_(vectors["buffers"])
        worker.x.copy_(vectors["x"])
        remembered = {name: vectors[name] for name in self.experiment.optimizer.remembers if name in vectors}
        if remembered:
            kept = {name: vector.to(worker.x.device, copy=True) for name, vector in remembered.items()}
            self.optimizer_state = State(kept, state.get("optimizer_steps", 0))
        for name, vector in vectors.items():
            if name.startswith("kept."):
                worker.keep(name.removeprefix("kept.")).copy_(vector)

    # Gradients and collectives

    def _gradient(self, task: Task[Any], request: Gradient) -> None:
        self._compute(self.compute.gradient, request.at, lambda taken: self._resume(task, taken()))

    def _mean_gradient(self, task: Task[Any], request: MeanGradient) -> None:
        self._count_collective("mean_gradient", self.worker.x)
        entered = self.worker.steps
        self._compute(self.compute.mean_gradient, request.at, lambda taken: self._resume(task, taken(), entered))

    def _mean_of_first(self, task: Task[Any], request: MeanOfFirst) -> None:
        self._count_collective("mean_of_first", self.worker.x)
        self.quorum.enter(task, request)

    def _compute(
        self,
        compute: Callable[[Tensor, Tensor, int, int], Future[Tensor]],
        at: Tensor,
        computed: Callable[[Taken], None],
    ) -> None:
        """Have a gradient computed, and then call `computed`."""
        buffers = self.buffers.clone()  # a mark must not see buffers of an unfinished forward pass
        future = compute(at, buffers, self.worker.rank, self.batches)
        self.batches += 1

        def answer(done: Future[Tensor]) -> None:
            gradient = None if isinstance(done.exception(), Diverged) else result_of(done)

            def taken() -> Tensor | None:
                self.buffers = buffers
                if gradient is None:  # no worker makes a step from a diverged gradient
                    self.ended = True
                    self.client.send("diverged", time_s=self.time_s, steps=self.worker.steps)
                return gradient

            computed(taken)

        self._then(future, answer, computes=True)

    def _resume(self, task: Task[Any], vector: Tensor | None, entered: int | None = None) -> None:
        """Give a task its gradient or mean, unless the run ends with it. entered: this worker's steps at its
        contribution."""
        if vector is not None:
            if entered is not None:
                self._count_mean(task, entered)
            task.resume(vector)

    def _all_reduce_mean(self, task: Task[Any], request: AllReduceMean) -> None:
        self._count_collective("all_reduce_mean", request.vector)
        self._reduce(task, request.vector, self.experiment.nodes)

    def _reduce(self, task: Task[Any], vector: Tensor, count: int) -> None:
        """Give a task the mean of `count` workers' vectors; other workers give zeros."""
        entered = self.worker.steps
        future = self.averaging.all_reduce_mean(vector, count)
        self._then(future, lambda done: self._resume(task, result_of(done), entered))

    def _count_collective(self, what: str, vector: Tensor) -> None:
        if not self.experiment.algo.lockstep:
            raise TypeError(f"{what} needs all workers: an algorithm that awaits it must say lockstep = True")
        self.traffic.reduced(vector)

    def _count_mean(self, task: Task[Any], entered: int) -> None:
        """Count the staleness of a mean when the algorithm receives it. entered: the worker's steps at its
        contribution."""
        if task is self._task:
            self.traffic.stale(self.worker.steps - entered)
        else:
            task.when_taken(lambda: self.traffic.stale(self.worker.steps - entered))

    def _answer(self, vector: Tensor, limit_s: float) -> tuple[Tensor, int] | None:
        """Return the algorithm's answer to a peer's vector, and the steps so far; None without an answer within limit_s
        seconds. Waits, in a thread of the plane."""

        def answer() -> tuple[Tensor, int]:
            return self.experiment.algo.answer(self.worker, vector), self.worker.steps

        return between_events(self.events, answer, limit_s)
