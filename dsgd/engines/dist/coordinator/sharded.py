"""Evaluate a mark in parts, on evaluator processes beside the workers.

The parts depend on the number of workers alone, and their sums are added in order: neither the number of evaluators
nor who evaluates which part changes a result.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import torch
from torch import Tensor

from dsgd.data.protocols import SharedDecoding
from dsgd.engines.dist.control import Client, Hub, Message
from dsgd.engines.dist.job import EXIT_FAILED, ProcessJob, ProcessOver
from dsgd.engines.dist.worker.process import CoordinatorClient
from dsgd.experiment import Experiment
from dsgd.host.resources import lower_thread_priority
from dsgd.problem.evaluation import accuracy_fields, distinct, fields, output_model
from dsgd.problem.precision import prepare
from dsgd.problem.problem import Problem, Sums, total

INTERRUPT_POLL_S = 0.1  # how often the thread that waits for parts checks for an interrupt


def is_sharded(job: ProcessJob) -> bool:
    """Return whether marks are evaluated in parts: `eval.sharded`, by default where workers of this machine have GPUs,
    and with several workers for images decoded from files."""
    wanted = job.experiment.eval.sharded
    if wanted is not None:
        return wanted
    on_gpus = any(names != ["cpu"] for names in job.devices.values())
    return on_gpus or (job.experiment.nodes > 1 and isinstance(job.problem.data, SharedDecoding))


def evaluator_ranks(job: ProcessJob, most: int) -> list[int]:
    """Return the ranks of the workers here on whose first device an evaluator is: one for each GPU, and on CPUs so many
    at most."""
    gpus = {names[0]: rank for rank, names in reversed(list(job.devices.items())) if names != ["cpu"]}
    on_cpu = [rank for rank, names in job.devices.items() if names == ["cpu"]]
    return sorted([*gpus.values(), *on_cpu[:most]])


@dataclass(eq=False)
class EvaluationPart:
    """One model, x [d] and buffers [nb], on shard (i, k) of some sets, each (test or training set, limit).

    sums: over this shard of each set, once the part is evaluated.
    """

    mark: str
    x: Tensor
    buffers: Tensor
    sets: Sequence[tuple[bool, int | None]]
    shard: tuple[int, int]
    sums: list[Sums] | None = None

    def evaluate(self, problem: Problem) -> list[Sums]:
        return [problem.sums(self.x, self.buffers, test, limit, self.shard) for test, limit in self.sets]


@dataclass(eq=False)
class EvaluatorClient:
    """An evaluator process as the coordinator sees it. busy: the part that it evaluates."""

    name: str
    client: Client
    busy: EvaluationPart | None = None
    silent: bool = False


class EvaluatorPool:
    """Distributes parts over the evaluators. One thread waits for results, another listens to the evaluators.

    timeout_s: silence after which a part is given to another one.
    join_deadline: until then, by time.monotonic(), the first evaluator may still join. log: gets lines for the user.
    """

    def __init__(self, hub: Hub, timeout_s: float, join_deadline: float, log: Callable[[str], None]) -> None:
        self._hub = hub
        self._timeout_s = timeout_s
        self._join_deadline = join_deadline
        self._log = log
        self._evaluators: list[EvaluatorClient] = []
        self._waiting: deque[EvaluationPart] = deque()
        self._changed = threading.Condition()

    # For the thread that waits for results

    def submit(self, parts: Sequence[EvaluationPart]) -> None:
        """Queue parts for evaluation."""
        with self._changed:
            self._waiting.extend(parts)

    def results(
        self, parts: Sequence[EvaluationPart], problem: Problem, check_interrupt: Callable[[], None]
    ) -> list[list[Sums]]:
        """Wait for the sums of these parts. Evaluates them in this thread if there is no live evaluator."""
        while True:
            check_interrupt()
            with self._changed:
                sums = [part.sums for part in parts if part.sums is not None]
                if len(sums) == len(parts):
                    return sums
                taken = self._take() if self._is_empty() else None
                if taken is None:
                    self._changed.wait(INTERRUPT_POLL_S)
                    continue
            taken.sums = taken.evaluate(problem)

    # For the thread that listens to the evaluators

    def join(self, client: Client, name: str) -> EvaluatorClient:
        with self._changed:
            self._evaluators.append(EvaluatorClient(name, client))
            return self._evaluators[-1]

    def receive(self, evaluator: EvaluatorClient, message: Message) -> None:
        """Take the sums of a part, or the error of an evaluator, which then ends."""
        with self._changed:
            if "error" in message:
                self._log(f"{evaluator.name} cannot evaluate: {message['error']}; its part is given to others")
                self._remove(evaluator)
                return
            if evaluator.busy is None or len(message["sums"]) != len(evaluator.busy.sets):
                self._hub.refuse(evaluator.client, "sums came that nobody had asked for")
                return
            evaluator.busy.sums = [Sums(*sums) for sums in message["sums"]]  # a second result is the same
            evaluator.busy = None
            self._changed.notify()

    def disconnected(self, evaluator: EvaluatorClient) -> None:
        """Remove an evaluator whose connection has ended."""
        with self._changed:
            if evaluator in self._evaluators:
                self._log(f"{evaluator.name} has died; its part is given to others")
                self._remove(evaluator)

    def assign(self, now: float) -> None:
        """Give waiting parts to idle evaluators, and parts of silent ones to others. Call it often."""
        with self._changed:
            for evaluator in self._evaluators:
                silent = now - evaluator.client.heard > self._timeout_s
                if silent and not evaluator.silent:
                    self._log(
                        f"{evaluator.name} has been silent for {self._timeout_s:g} s; others evaluate in its place"
                    )
                    self._requeue(evaluator.busy)
                evaluator.silent = silent
                if not silent and evaluator.busy is None and (part := self._take()) is not None:
                    evaluator.busy = part
                    message = {"kind": "evaluate", "mark": part.mark, "sets": part.sets, "shard": part.shard}
                    self._hub.send(evaluator.client, message, {"x": part.x, "buffers": part.buffers})
            if self._is_empty():
                self._changed.notify()

    def close(self) -> None:
        """Remove all evaluators: the thread that waits for results must evaluate what is left."""
        with self._changed:
            self._join_deadline = 0.0
            for evaluator in [*self._evaluators]:
                self._remove(evaluator)
            self._changed.notify()

    # With the lock held

    def _is_empty(self) -> bool:
        return time.monotonic() > self._join_deadline and all(evaluator.silent for evaluator in self._evaluators)

    def _take(self) -> EvaluationPart | None:
        """Return the next part that nobody has evaluated."""
        while self._waiting:
            part = self._waiting.popleft()
            if part.sums is None:
                return part
        return None

    def _requeue(self, part: EvaluationPart | None) -> None:
        if part is not None:
            self._waiting.appendleft(part)

    def _remove(self, evaluator: EvaluatorClient) -> None:
        self._evaluators.remove(evaluator)
        if not evaluator.silent:
            self._requeue(evaluator.busy)
        if not self._evaluators:
            self._join_deadline = min(self._join_deadline, time.monotonic())


def measure_in_parts(
    pool: EvaluatorPool,
    experiment: Experiment,
    problem: Problem,
    mark: str,
    xs: Sequence[Tensor],
    buffers: Sequence[Tensor],
    centre: Tensor | None,
    check_interrupt: Callable[[], None],
) -> dict[str, float | None]:
    """Do what `dsgd.problem.evaluation.measure` does, on the evaluators, in one part per worker of the experiment."""
    rule, p = experiment.eval, experiment.nodes
    output, statistics = output_model(problem, rule, xs, buffers, centre)
    sets = ((False, rule.train_samples), (True, None))
    parts = [EvaluationPart(mark, output, statistics, sets, (i, p)) for i in range(p)]
    pool.submit(parts)
    both_sets = zip(*pool.results(parts, problem, check_interrupt), strict=True)
    train, test = (problem.measured(total(sums)) for sums in both_sets)
    return fields(train, test, xs)


def measure_workers_in_parts(
    pool: EvaluatorPool,
    experiment: Experiment,
    problem: Problem,
    mark: str,
    xs: Sequence[Tensor],
    buffers: Sequence[Tensor],
    check_interrupt: Callable[[], None],
) -> dict[str, float | None]:
    """Do what `dsgd.problem.evaluation.measure_workers` does, on the evaluators: the distinct models together in as
    many parts as the experiment has workers."""
    if not problem.data.classes or not xs:
        return accuracy_fields([])
    places, first = distinct(xs, buffers)
    shards = max(1, experiment.nodes // len(first))
    parts = [
        EvaluationPart(mark, xs[rank], buffers[rank], ((True, None),), (i, shards))
        for rank in first
        for i in range(shards)
    ]
    pool.submit(parts)
    totals = [total(sums) for sums in pool.results(parts, problem, check_interrupt)]
    by_model = [total(totals[begin : begin + shards]) for begin in range(0, len(totals), shards)]
    return accuracy_fields([by_model[index].correct / by_model[index].samples for index in places])


def evaluate(job: ProcessJob, rank: int, client: CoordinatorClient, is_replacement: bool) -> None:
    """Evaluate parts as they come, on the first device of worker `rank`, until the coordinator ends the process or an
    evaluation raises."""
    torch.set_num_threads(job.threads)
    device = torch.device(job.devices[rank][0])
    prepare(job.experiment.precision, device)
    job.problem.to(device)
    parts: SimpleQueue[EvaluationPart] = SimpleQueue()

    def enqueue(message: Message, vectors: dict[str, Tensor]) -> None:
        if message["kind"] == "evaluate":
            x, buffers = vectors["x"], vectors["buffers"]
            parts.put(EvaluationPart(message["mark"], x, buffers, sets=message["sets"], shard=message["shard"]))

    client.accept_models()
    client.send("hello", role="evaluator", name=f"evaluator {rank}")
    client.listen(enqueue)
    client.start_reports()
    lower_thread_priority()
    while True:
        part = parts.get()
        begin = time.monotonic()
        try:
            sums = part.evaluate(job.problem)
        except BaseException as error:  # whatever a model or a data set may raise
            print(traceback.format_exc(), flush=True)
            text = " ".join(f"{type(error).__name__}: {error}".split())
            client.send("evaluated", error=text)
            raise ProcessOver(EXIT_FAILED) from error
        i, k = part.shard
        count = sum(part.samples for part in sums)
        print(f"{part.mark}: part {i + 1} of {k}, {count} samples, {time.monotonic() - begin:.2f} s", flush=True)
        client.send("evaluated", sums=sums)
