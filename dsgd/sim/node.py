"""The simulator's side of a worker and of a collective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dsgd.engine.task import Task
from dsgd.sim.compute import Processor
from dsgd.worker import Worker

Letter = tuple[Tensor, int]  # a vector, and the sender's step count at the time it was made


class Incoming:
    """An exchange as its receiver sees it. arrived: by source, in the order asked for; None: not here yet."""

    __slots__ = ("arrived", "missing", "task")

    def __init__(self, task: Task[Any], sources: Sequence[int]) -> None:
        self.task = task
        self.arrived: dict[int, Letter | None] = dict.fromkeys(sources)
        self.missing = len(self.arrived)


class Node:
    """What the simulator keeps for one worker."""

    __slots__ = (
        "batches",
        "buffers",
        "collectives",
        "computed_s",
        "computing",
        "early",
        "exchanges",
        "inbox",
        "processor",
        "published",
        "received",
        "velocity",
        "worker",
    )

    def __init__(self, worker: Worker, processor: Processor, start: Tensor, buffers: Tensor) -> None:
        self.worker = worker
        self.processor = processor
        self.buffers = buffers  # [nb], batch norm's running statistics
        self.velocity: Tensor | None = None
        self.batches = 0  # mini-batches drawn so far
        self.published: Letter = (start, 0)  # all nodes share the start, which nobody changes
        self.inbox: list[tuple[Tensor, int, int]] = []  # vector, sender, its steps
        self.exchanges: list[Incoming] = []  # waiting for vectors, the first one entered first
        self.early: dict[int, list[Letter]] = {}  # exchanged vectors by source that came before they were waited for
        self.collectives = 0  # how many collectives it has entered
        self.received = 0  # vectors, since the last gradient was begun
        self.computed_s = 0.0  # in finished gradients
        self.computing = (0.0, 0.0)  # the latest gradient's start and end

    def expect(self, exchange: Incoming) -> None:
        """Enter an exchange, which waits behind those that have been entered before."""
        self.exchanges.append(exchange)
        if self.early:
            self._open_early()

    def receive(self, source: int, letter: Letter) -> bool:
        """Take in an exchanged vector; True if the first exchange is complete now. Vectors of one pair never overtake
        each other."""
        exchange = self.exchanges[0] if self.exchanges else None
        if exchange is not None and exchange.arrived.get(source, letter) is None:
            exchange.arrived[source] = letter
            exchange.missing -= 1
        else:
            self.early.setdefault(source, []).append(letter)
        return exchange is not None and not exchange.missing

    def completed(self) -> Incoming | None:
        """The first exchange, if nothing of it is missing: it leaves."""
        if not self.exchanges or self.exchanges[0].missing:
            return None
        exchange = self.exchanges.pop(0)
        if self.early:
            self._open_early()
        return exchange

    def _open_early(self) -> None:
        """Give the first exchange what came before it."""
        for exchange in self.exchanges[:1]:
            for source in [source for source, letter in exchange.arrived.items() if letter is None]:
                letters = self.early.get(source)
                if letters is not None:
                    exchange.arrived[source] = letters.pop(0)
                    exchange.missing -= 1
                    if not letters:
                        del self.early[source]

    def begin_gradient(self, start_s: float) -> float:
        """Start to compute now; returns when it will be done."""
        begin, end = self.computing
        self.computed_s += end - begin
        self.computing = (start_s, self.processor.finish(start_s, self.received))
        self.received = 0
        return self.computing[1]

    def idle_fraction(self, now_s: float) -> float:
        """The share of the time so far in which it did not compute; a stall in the midst of a gradient is not idle."""
        begin, end = self.computing
        busy = self.computed_s + max(0.0, min(end, now_s) - begin)
        return max(0.0, 1 - busy / now_s) if now_s > 0 else 0.0


class Gathering:
    """A collective that is being entered: what each worker brought, by rank, and when it can begin and end at the
    earliest."""

    def __init__(self, nodes: int) -> None:
        self.tasks: list[Task[Any] | None] = [None] * nodes
        self.brought: list[Any] = [None] * nodes
        self.steps = [0] * nodes
        self.missing = nodes
        self.begin_s = 0.0  # when the last worker is ready to communicate
        self.end_s = 0.0  # not before the last worker has computed

    def enter(self, task: Task[Any], worker: Worker, brought: Any, begin_s: float, end_s: float) -> bool:
        """Returns True if this was the last one."""
        self.tasks[worker.rank] = task
        self.brought[worker.rank] = brought
        self.steps[worker.rank] = worker.steps
        self.begin_s = max(self.begin_s, begin_s)
        self.end_s = max(self.end_s, end_s)
        self.missing -= 1
        return self.missing == 0
