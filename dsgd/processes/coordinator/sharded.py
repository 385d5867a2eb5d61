"""A mark evaluated in parts by processes beside the workers, the evaluators; here the coordinator's end of it.

Into which parts an evaluation falls depends on the number of workers alone, and their sums are added in order: who
evaluates which part, and how many are there to do it, changes no result.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from dsgd.data.protocols import Decoded
from dsgd.experiment import Experiment
from dsgd.problem.evaluation import distinct, fields, output_model
from dsgd.problem.problem import Problem, Sums, total
from dsgd.processes.control.frames import Message
from dsgd.processes.control.hub import Client

LOOK_S = 0.1  # how often the thread that waits for parts looks up

Send = Callable[[Client, Message, Mapping[str, Tensor]], None]


def is_sharded(experiment: Experiment, problem: Problem) -> bool:
    """What `eval.sharded` means for this run."""
    wanted = experiment.eval.sharded
    return experiment.nodes > 1 and isinstance(problem.data, Decoded) if wanted is None else wanted


@dataclass(frozen=True)
class Part:
    """One model, x [d] and buffers [nb], on a shard (i, k) of some sets, each (test or training set, limit)."""

    mark: str
    x: Tensor
    buffers: Tensor
    sets: tuple[tuple[bool, int | None], ...]
    shard: tuple[int, int]

    def evaluate(self, problem: Problem) -> list[Sums]:
        """Of each of the sets."""
        return [problem.sums(self.x, self.buffers, test, limit, self.shard) for test, limit in self.sets]

    def message(self, number: int) -> Message:
        return {"kind": "evaluate", "number": number, "mark": self.mark, "sets": self.sets, "shard": self.shard}

    @property
    def vectors(self) -> dict[str, Tensor]:
        return {"x": self.x, "buffers": self.buffers}

    @classmethod
    def received(cls, message: Message, vectors: Mapping[str, Tensor]) -> Part:
        part, parts = message["shard"]
        sets = tuple((test, limit) for test, limit in message["sets"])
        return cls(message["mark"], vectors["x"], vectors["buffers"], sets, (part, parts))


@dataclass(eq=False)
class Evaluator:
    """A process that evaluates, as the coordinator sees it. busy: the number of the part that it has."""

    name: str
    client: Client
    busy: int | None = None
    silent: bool = False


class Evaluators:
    """Parts are waited for by one thread and handed out by another, which listens to the evaluators.

    send: to an evaluator. timeout_s: after so much silence a part is given to somebody else. alone_s: until then, by
    time.monotonic(), somebody may still come when nobody is there. log: gets one line on whatever the user should know.
    """

    def __init__(self, send: Send, timeout_s: float, alone_s: float, log: Callable[[str], None]) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self._alone_s = alone_s
        self._log = log
        self._evaluators: list[Evaluator] = []
        self._parts: dict[int, Part] = {}  # that are not yet evaluated, by number
        self._waiting: deque[int] = deque()
        self._found: dict[int, list[Sums]] = {}
        self._count = 0
        self._changed = threading.Condition()

    # For the thread that evaluates

    def submit(self, parts: Sequence[Part]) -> range:
        """Have them evaluated; returns their numbers."""
        with self._changed:
            numbers = range(self._count, self._count + len(parts))
            self._count = numbers.stop
            self._parts.update(zip(numbers, parts, strict=True))
            self._waiting.extend(numbers)
        return numbers

    def results(self, numbers: range, problem: Problem, look: Callable[[], None]) -> list[list[Sums]]:
        """Of these parts. Evaluates them itself where there is nobody else. look: called now and then."""
        while True:
            look()
            with self._changed:
                if all(number in self._found for number in numbers):
                    return [self._found.pop(number) for number in numbers]
                own = self._take() if self._nobody() else None
                if own is None:
                    self._changed.wait(LOOK_S)
                    continue
                part = self._parts[own]
            sums = part.evaluate(problem)
            with self._changed:
                self._put(own, sums)

    def _nobody(self) -> bool:
        return time.monotonic() > self._alone_s and all(evaluator.silent for evaluator in self._evaluators)

    # For the thread that listens

    def join(self, client: Client, name: str) -> Evaluator:
        with self._changed:
            self._evaluators.append(Evaluator(name, client))
            return self._evaluators[-1]

    def answer(self, evaluator: Evaluator, message: Message) -> None:
        """It has evaluated its part, or says why it cannot; then it leaves."""
        with self._changed:
            if "error" in message:
                self._log(f"{evaluator.name} cannot evaluate: {message['error']}; its part is given to others")
                self._leave(evaluator)
                return
            evaluator.busy = None
            self._put(message["number"], [Sums(*sums) for sums in message["sums"]])

    def gone(self, evaluator: Evaluator) -> None:
        """Its connection has ended."""
        with self._changed:
            if evaluator in self._evaluators:
                self._log(f"{evaluator.name} has died; its part is given to others")
                self._leave(evaluator)

    def tick(self, now: float) -> None:
        """Hand out what is waiting. Call it often."""
        with self._changed:
            for evaluator in self._evaluators:
                silent = now - evaluator.client.heard > self._timeout_s
                if silent and not evaluator.silent:
                    self._log(
                        f"{evaluator.name} has been silent for {self._timeout_s:g} s; others evaluate in its place"
                    )
                    self._again(evaluator.busy)
                evaluator.silent = silent
                if not silent and evaluator.busy is None and (number := self._take()) is not None:
                    evaluator.busy = number
                    part = self._parts[number]
                    self._send(evaluator.client, part.message(number), part.vectors)
            if self._nobody():
                self._changed.notify()

    def tell(self, message: Message) -> None:
        for evaluator in self._evaluators:
            self._send(evaluator.client, message, {})

    def leave(self) -> None:
        """Nobody listens any more: what is left must be done by who waits for it."""
        with self._changed:
            self._alone_s = 0.0
            for evaluator in [*self._evaluators]:
                self._leave(evaluator)
            self._changed.notify()

    # With the lock held

    def _take(self) -> int | None:
        """The next part that nobody has evaluated."""
        while self._waiting:
            number = self._waiting.popleft()
            if number in self._parts:
                return number
        return None

    def _put(self, number: int, sums: list[Sums]) -> None:
        if self._parts.pop(number, None) is not None:  # a second answer is the same
            self._found[number] = sums
            self._changed.notify()

    def _again(self, number: int | None) -> None:
        if number in self._parts:
            self._waiting.appendleft(number)

    def _leave(self, evaluator: Evaluator) -> None:
        self._evaluators.remove(evaluator)
        if not evaluator.silent:
            self._again(evaluator.busy)
        self._alone_s = min(self._alone_s, time.monotonic()) if not self._evaluators else self._alone_s


def measure_in_parts(
    evaluators: Evaluators,
    experiment: Experiment,
    problem: Problem,
    mark: str,
    xs: Sequence[Tensor],
    buffers: Sequence[Tensor],
    centre: Tensor | None,
    look: Callable[[], None],
) -> dict[str, float | None]:
    """As `dsgd.problem.evaluation.measure`, by the evaluators: the output model in a part for each worker of the
    experiment, the workers' own models in as many parts together. look: called now and then."""
    rule, p = experiment.eval, experiment.nodes
    places, first = distinct(xs, buffers)
    shards = max(1, p // len(first))
    test_set = (True, None)
    own = [Part(mark, xs[rank], buffers[rank], (test_set,), (i, shards)) for rank in first for i in range(shards)]
    of_workers = evaluators.submit(own if problem.data.classes else [])  # the larger parts first
    output, statistics = output_model(problem, rule, xs, buffers, centre)
    sets = ((False, rule.train_samples), test_set)
    of_output = evaluators.submit([Part(mark, output, statistics, sets, (i, p)) for i in range(p)])
    train, test = (
        problem.measured(total(sums)) for sums in zip(*evaluators.results(of_output, problem, look), strict=True)
    )
    found = [total(sums) for sums in evaluators.results(of_workers, problem, look)]
    by_model = [total(found[begin : begin + shards]) for begin in range(0, len(found), shards)]
    accuracies = [by_model[place].correct / by_model[place].samples for place in places if by_model]
    return fields(train, test, accuracies, xs)
