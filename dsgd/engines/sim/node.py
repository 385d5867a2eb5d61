"""The state of a simulated worker, of the collectives and exchanges that it has entered, and the time of its gradients:
slow nodes, jitter and stalls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsgd.cluster import Cluster
from dsgd.cluster.compute_trace import ComputeTrace, Congestion, JitterLaw, Stall
from dsgd.engines.rules.task import Task
from dsgd.engines.sim.downtime import LockstepFailures
from dsgd.optim.optimizer import State
from dsgd.streams import stream
from dsgd.worker import Worker

DRAWN = 32  # factors at once, for each node

VectorMessage = tuple[Tensor, int]  # a vector, and the sender's step count when it was made


class Processor:
    """Compute the durations of one node's gradients. Its random streams depend only on (seed, node).

    nodes: number of nodes on which a trace is replayed. failing: its failures in lock-step."""

    def __init__(
        self, cluster: Cluster, node: int, seed: int, nodes: int = 1, failing: LockstepFailures | None = None
    ) -> None:
        mean_s = cluster.mean_gradient_s
        if mean_s is None:
            raise ValueError("cluster.gradient_s must be a number in a simulation, got null")
        slowness = (cluster.slow_nodes or {}).get(node, 1.0)
        trace, law = cluster.replayed, cluster.jitter_law
        self.mean_s = mean_s * slowness
        if law.persistent:
            self.mean_s *= lognormal(stream("persistent_jitter", seed, node), law.persistent)
        jitter = stream("jitter", seed, node)
        self._phases = SlowPhases(law, jitter) if law.cv and law.memory_s else None
        self._factors = jitter_factors(law, jitter) if law.cv else None
        self._times = None if trace is None else replay(trace, node, nodes, seed, slowness)
        self._receive_overhead_s = cluster.receive_overhead_s
        stalls = [Stall.from_entry(entry) for entry in cluster.stalls]
        self._pauses = [
            Pauses(stall, stream("stall", seed, node, index))
            for index, stall in enumerate(stalls)
            if stall.node is None or stall.node == node
        ]
        self._failing = failing
        self._steady = self._factors is None and self._times is None and not self._pauses

    def finish(self, start_s: float, vectors: int = 0) -> float:
        """Return the end of a gradient that begins at start_s, after `vectors` received vectors. Call in order of
        time."""
        before_s = vectors * self._receive_overhead_s
        if self._steady and self._failing is None:
            return start_s + before_s + self.mean_s
        work_s = before_s + self._gradient_s(start_s)
        if self._failing is None:
            return self._finish(work_s, start_s)
        return self._failing.finish(start_s, partial(self._finish, work_s))

    def _finish(self, left_s: float, now_s: float, until_s: float = math.inf) -> float:
        """Return the end of `left_s` seconds of work that begins at `now_s`, pauses included; any time after until_s if
        later."""
        while self._pauses and now_s < until_s:
            begin_s, end_s = min(pauses.after(now_s) for pauses in self._pauses)
            if begin_s >= now_s + left_s:
                break
            left_s -= max(0.0, begin_s - now_s)
            now_s = end_s
        return now_s + left_s

    def _gradient_s(self, start_s: float) -> float:
        """Return the duration of the next gradient, without stalls."""
        if self._times is not None:
            return next(self._times)
        if self._phases is not None:
            return self.mean_s * self._phases.factor(start_s)
        return self.mean_s if self._factors is None else self.mean_s * next(self._factors)


def jitter_factors(law: JitterLaw, rng: np.random.Generator) -> Iterator[float]:
    """Draw the factors of one node's gradient times, by a law without a memory, without end.

    A normal factor that is not above 0 is drawn again: one in 741 with the largest jitter. So the mean is 0.15 % above
    1 and the deviation 0.7 % lower."""
    while True:  # a call of NumPy takes longer than a draw; single draws give the same numbers
        if law.distribution == "gamma":
            shape = law.cv**-2
            factors = rng.gamma(shape, 1 / shape, DRAWN)
        elif law.distribution == "normal":
            factors = rng.normal(1.0, law.cv, DRAWN)
            factors = factors[factors > 0]
        else:
            factors = rng.lognormal(*parameters_of(law.base_cv), DRAWN)
            factors = factors if law.skew is None else 1 + (factors - 1) * law.cv / law.base_cv
        yield from factors.tolist()


@dataclass(eq=False)
class SlowPhases:
    """Draw log-normal factors of one node's gradient times, each correlated with the one before."""

    _law: JitterLaw
    _rng: np.random.Generator
    _level: float | None = None  # of the normal that the factor is made of
    _start_s: float = 0.0  # of the gradient that has this level

    def factor(self, start_s: float) -> float:
        """Draw the factor of a gradient that begins at this time: the longer after the one before, the less correlated
        with it."""
        law, level = self._law, self._rng.standard_normal()
        if self._level is not None:
            kept = math.exp((self._start_s - start_s) / law.memory_s)
            level = kept * self._level + math.sqrt(1 - kept**2) * level
        self._level, self._start_s = level, start_s
        mean, deviation = parameters_of(law.base_cv)
        base = math.exp(deviation * level + mean)
        return base if law.skew is None else 1 + (base - 1) * law.cv / law.base_cv


def parameters_of(cv: float) -> tuple[float, float]:
    """Return mean and deviation of the normal whose exponential has mean 1 and this standard deviation."""
    variance = math.log1p(cv**2)
    return -variance / 2, math.sqrt(variance)


def lognormal(rng: np.random.Generator, cv: float) -> float:
    """Draw a log-normal number with mean 1 and this standard deviation."""
    return rng.lognormal(*parameters_of(cv))


def replay(trace: ComputeTrace, node: int, nodes: int, seed: int, slowness: float) -> Iterator[float]:
    """Return the gradient times of a node: the times of one rank, repeated without end.

    With as many nodes as ranks, each node replays its own rank. Otherwise the ranks are shuffled, and each of the first
    nodes takes one. Later nodes take the ranks again, each from a random step, so nodes of one rank are not slow
    together. The order of a rank's steps is kept, and with it slow phases and slow ranks."""
    ranks = len(trace.seconds)
    rank = node if nodes == ranks else int(stream("compute_trace", seed).permutation(ranks)[node % ranks])
    times = trace.seconds[rank]
    first = int(stream("compute_trace_step", seed, node).integers(len(times))) if node >= ranks else 0
    return (slowness * seconds for seconds in cycle(times[first:] + times[:first]))


class Pauses:
    """Generate the pauses of one `Stall` on one node, or the times of a `Congestion`, in order of time."""

    def __init__(self, stall: Stall | Congestion, rng: np.random.Generator) -> None:
        self._stall = stall
        self._rng = rng
        self._begin = self._end = 0.0
        if stall.start_s is not None:
            self._begin, self._end = stall.start_s, stall.start_s + stall.duration_s
        else:
            self._next()

    def _next(self) -> None:
        if self._stall.every_s is None:
            self._begin = self._end = math.inf
        else:
            self._begin = self._end + self._rng.exponential(self._stall.every_s)
            self._end = self._begin + self._rng.exponential(self._stall.duration_s)

    def after(self, time_s: float) -> tuple[float, float]:
        """Return begin and end of the first pause that ends after this time; infinite after the last one."""
        while self._end <= time_s:
            self._next()
        return self._begin, self._end


class PendingExchange:
    """Collect the vectors of one exchange. arrived: {source: message}, in the requested order; None: missing."""

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
    collectives: int = 0  # number of collectives that it has entered
    computed_s: float = 0.0  # in finished gradients
    computing: tuple[float, float] = (0.0, 0.0)  # the latest gradient's start and end
    down: bool = False  # it has failed, and has no parameters yet
    early: dict[int, list[VectorMessage]] = field(default_factory=dict)  # by source: no exchange waits for them yet
    exchanges: list[PendingExchange] = field(default_factory=list)  # waiting for vectors, the first one entered first
    inbox: list[tuple[Tensor, int, int]] = field(default_factory=list)  # vector, sender, its steps
    optimizer_state: State | None = None
    processor: Processor
    published: VectorMessage
    received: int = 0  # vectors, since the start of the last gradient
    tasks: list[Task[Any]] = field(default_factory=list)  # tasks that end with the node, if nodes may fail
    worker: Worker

    def expect(self, exchange: PendingExchange) -> None:
        """Enter an exchange, behind earlier ones."""
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
        """Move vectors that arrived early into the first exchange."""
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
        """Lose the node's memory and its pending gradient."""
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

    missing: number of workers that have not entered."""

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
        """Stop expecting a worker, and drop its contribution."""
        if self.tasks[rank] is None:
            self.missing -= 1
        self.tasks[rank] = self.contributions[rank] = None


class NullVector(Tensor):
    """An empty vector [0] whose arithmetic returns itself.

    A call of torch costs microseconds even for empty tensors, and an algorithm makes several in a step. Operations that
    are not listed below are torch's own, and return plain empty tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    def _itself(self, *_: Any, **__: Any) -> NullVector:
        return self

    def new_zeros(self, *size: Any, **options: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        made = super().new_zeros(*size, **options)
        return null_vector(made) if made.shape == self.shape else made

    def tensor_split(self, at: int | list[int]) -> tuple[NullVector, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (self,) * (at if isinstance(at, int) else len(at) + 1)


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
