"""The state of a simulated worker, and of the collectives and exchanges that it has entered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dsgd.engines.rules.task import Task
from dsgd.engines.sim.compute_time import Processor
from dsgd.optim.optimizer import State
from dsgd.worker import Worker

VectorMessage = tuple[Tensor, int]  # a vector, and the sender's step count when it was made


class PendingExchange:
    """Collect the vectors of one exchange. arrived: by source, in the order asked for; None: not here yet."""

    __slots__ = ("arrived", "missing", "task")

    def __init__(self, task: Task[Any], sources: Sequence[int]) -> None:
        self.task = task
        self.arrived: dict[int, VectorMessage | None] = dict.fromkeys(sources)
        self.missing = len(self.arrived)


@dataclass(eq=False, kw_only=True, slots=True)
class Node:
    """Hold the simulated state of one worker, by name: in this order a checkpoint has the vectors."""

    batches: int = 0  # mini-batches drawn so far
    buffers: Tensor  # [nb], batch norm's running statistics
    collectives: int = 0  # how many collectives it has entered
    computed_s: float = 0.0  # in finished gradients
    computing: tuple[float, float] = (0.0, 0.0)  # the latest gradient's start and end
    down: bool = False  # it has failed, and has no parameters yet
    early: dict[int, list[VectorMessage]] = field(default_factory=dict)  # by source: no exchange waits for them yet
    exchanges: list[PendingExchange] = field(default_factory=list)  # waiting for vectors, the first one entered first
    inbox: list[tuple[Tensor, int, int]] = field(default_factory=list)  # vector, sender, its steps
    optimizer_state: State | None = None
    processor: Processor
    published: VectorMessage
    received: int = 0  # vectors, since the last gradient was begun
    tasks: list[Task[Any]] = field(default_factory=list)  # those that end with it, where nodes may fail
    worker: Worker

    def expect(self, exchange: PendingExchange) -> None:
        """Enter an exchange, behind those entered before."""
        self.exchanges.append(exchange)
        if self.early:
            self._open_early()

    def receive(self, source: int, message: VectorMessage) -> bool:
        """Take in an exchanged vector. Returns True if the first exchange is complete now. Vectors of one pair never
        overtake each other."""
        exchange = self.exchanges[0] if self.exchanges else None
        if exchange is not None and exchange.arrived.get(source, message) is None:
            exchange.arrived[source] = message
            exchange.missing -= 1
        else:
            self.early.setdefault(source, []).append(message)
        return exchange is not None and not exchange.missing

    def completed(self) -> PendingExchange | None:
        """Remove and return the first exchange if it is complete."""
        if not self.exchanges or self.exchanges[0].missing:
            return None
        exchange = self.exchanges.pop(0)
        if self.early:
            self._open_early()
        return exchange

    def _open_early(self) -> None:
        """Move vectors that came early into the first exchange."""
        for exchange in self.exchanges[:1]:
            for source in [source for source, message in exchange.arrived.items() if message is None]:
                messages = self.early.get(source)
                if messages is not None:
                    exchange.arrived[source] = messages.pop(0)
                    exchange.missing -= 1
                    if not messages:
                        del self.early[source]

    def begin_gradient(self, start_s: float) -> float:
        """Begin a gradient. Returns the time at which it is done."""
        begin, end = self.computing
        self.computed_s += end - begin
        self.computing = (start_s, self.processor.finish(start_s, self.received))
        self.received = 0
        return self.computing[1]

    def fail(self, now_s: float) -> None:
        """Lose all that is in the node's memory, and the gradient under way."""
        for task in self.tasks:
            task.close()
        self.down = True
        self.tasks, self.inbox, self.received = [], [], 0
        self.optimizer_state = None
        self.worker.kept.clear()
        self.computing = (self.computing[0], min(self.computing[1], now_s))

    def idle_fraction(self, now_s: float) -> float:
        """Return the share of the time so far without computing; a stall within a gradient counts as computing."""
        begin, end = self.computing
        busy = self.computed_s + max(0.0, min(end, now_s) - begin)
        return max(0.0, 1 - busy / now_s) if now_s > 0 else 0.0


class PendingAllReduce:
    """Collect the contributions to one all-reduce, by rank, and its earliest begin and end.

    missing: how many workers are expected."""

    def __init__(self, nodes: int, missing: int, n_bytes: float, parts: int) -> None:
        self.tasks: list[Task[Any] | None] = [None] * nodes
        self.contributions: list[Any] = [None] * nodes
        self.steps = [0] * nodes
        self.missing, self.n_bytes, self.parts = missing, n_bytes, parts
        self.begin_s = 0.0  # when the last worker is ready to communicate
        self.end_s = 0.0  # not before the last worker has computed

    def enter(self, task: Task[Any], worker: Worker, contribution: Any, begin_s: float, end_s: float) -> bool:
        """Add a worker. Returns True if it is the last one."""
        self.tasks[worker.rank] = task
        self.contributions[worker.rank] = contribution
        self.steps[worker.rank] = worker.steps
        self.begin_s = max(self.begin_s, begin_s)
        self.end_s = max(self.end_s, end_s)
        self.missing -= 1
        return self.missing == 0

    def withdraw(self, rank: int) -> None:
        """Expect a worker no more, and drop what it has contributed."""
        if self.tasks[rank] is None:
            self.missing -= 1
        self.tasks[rank] = self.contributions[rank] = None


class NullVector(Tensor):
    """An empty vector [0] whose arithmetic returns itself.

    A call of torch costs microseconds even for empty tensors, and an algorithm makes several in a step. Operations that
    are not listed below are torch's own, and return plain empty tensors.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    def _itself(self, *_: Any, **__: Any) -> NullVector:
        return self

    def new_zeros(self, *size: Any, **options: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        made = super().new_zeros(*size, **options)
        return null_vector(made) if made.shape == self.shape else made

    def tensor_split(self, sections: int) -> tuple[NullVector, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (self,) * sections


ELEMENTWISE = ("add", "sub", "mul", "div", "addcmul", "addcdiv", "sqrt", "lerp")
for _name in (
    *ELEMENTWISE,
    *(f"{name}_" for name in ELEMENTWISE),
    *(f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv") for side in ("", "r", "i")),
    *("clone", "copy_", "zero_"),
):
    setattr(NullVector, _name, NullVector._itself)


def null_vector(like: Tensor) -> NullVector:
    """Return a null vector with the dtype of `like`."""
    return like[:0].as_subclass(NullVector)
