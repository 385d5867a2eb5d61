"""The narrow waist between algorithms and engines.

An algorithm is one coroutine per worker, `async def train(self, worker)`. **Every `await` is a place where time may
pass, and nothing else takes time.** What is awaited is a request: a small frozen value that an engine interprets, the
simulator by adding virtual time, an engine of real processes by doing the work. Algorithms see nothing else of an
engine.

Two rules keep shared memory sound in both engines:

- a vector that was handed over (sent, published, reduced) belongs to the engine: hand over a clone, never the live `x`;
  the point of a gradient is lent until the answer comes, and may be `x` where nothing changes it meanwhile;
- a vector that an `await` returned may be shared with other workers: read it, never write to it.

What is sent, reduced or exchanged may be shorter than x, as a code is, or longer, by a few numbers or another vector of
x's length: whatever it is, it is a vector [n] of numbers of x's type, and `size` is what sending it costs, as a share
of what x costs: n / d. (A run for its times alone has vectors without numbers, so the vector cannot tell.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

T = TypeVar("T")


class Request:
    """Something a coroutine waits for. `await request` hands it to the engine and returns the engine's answer."""

    __slots__ = ()

    def __await__(self) -> Generator[Request, Any, Any]:
        return (yield self)


@dataclass(frozen=True, slots=True, eq=False)
class Gradient(Request):
    """Gradient [d] of the worker's next mini-batch at the point `at` [d], weight decay included."""

    at: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class MeanGradient(Request):
    """The mean over all workers of their `Gradient(at)`, its communication overlapped with the backward pass."""

    at: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class MeanOfFirst(Request):
    """The mean of the first `count` of the workers' `Gradient(at)`. Those that come later are finished and dropped, and
    only then does their worker begin the next, at the point with which it waits by then."""

    at: Tensor
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class AllReduceMean(Request):
    """The mean [n] over all workers of the vectors they contribute; leaves when the last one has entered."""

    vector: Tensor
    size: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Exchange(Request):
    """Send all `vectors`, {target: vector}, at once; the answer is {source: its vector} for all `sources`."""

    vectors: Mapping[int, Tensor]
    sources: Sequence[int]
    size: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Pull(Request):
    """The last vector that `peer` published, fetched without involving its training loop; None if it cannot be
    reached."""

    peer: int


@dataclass(frozen=True, slots=True, eq=False)
class Push(Request):
    """Deliver `vector` to the inbox of `peer`; the answer comes when it has arrived there, or cannot."""

    peer: int
    vector: Tensor
    size: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Ask(Request):
    """What `Algorithm.answer` of `peer` returns for `vector`, at one moment in which the peer's coroutines all wait, or
    have ended; None if it cannot be reached."""

    peer: int
    vector: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Call(Request):
    """One atomic operation on every shard of the parameter server: a method of `Algorithm.server(...)` by its name."""

    operation: str
    vector: Tensor | None
    scalars: tuple[float, ...]
    size: float = 1.0


@dataclass(frozen=True, slots=True)
class Busy(Request):
    """Work beside gradients that takes `seconds`: the simulator adds them, real processes take what the work takes."""

    seconds: float


class Engine(Protocol):
    """The calls of a worker that its engine answers at once. None of these may take time."""

    def start(self, worker: Worker, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]: ...
    def publish(self, worker: Worker) -> None: ...
    def inbox(self, worker: Worker) -> list[Tensor]: ...
    def done(self, worker: Worker) -> bool: ...
    def learning_rate(self, worker: Worker) -> float: ...
    def step(self, worker: Worker, g: Tensor) -> None: ...
    def remembered(self, worker: Worker) -> Sequence[Tensor]: ...
    def forget(self, worker: Worker) -> None: ...


class Worker:
    """One worker as its algorithm sees it.

    x: the flat parameter vector [d] (float32, float64 for oracles), changed in place by the algorithm.
    rank, nodes: which of how many workers this is. rng: this worker's own random stream.
    steps: how many local optimiser steps it has applied. layout: the shapes of the model's parameters, one after the
    other as they lie in x.
    """

    __slots__ = ("_engine", "kept", "layout", "nodes", "rank", "rng", "steps", "x")

    def __init__(
        self,
        rank: int,
        nodes: int,
        x: Tensor,
        rng: np.random.Generator,
        engine: Engine,
        layout: Sequence[tuple[int, ...]] = (),
    ) -> None:
        self.rank = rank
        self.layout = layout
        self.nodes = nodes
        self.x = x
        self.rng = rng
        self.steps = 0
        self.kept: dict[str, Tensor] = {}
        self._engine = engine

    @property
    def done(self) -> bool:
        """True when the budget is used up: after the same step everywhere for a lock-step algorithm, otherwise when the
        samples of all workers together reach it."""
        return self._engine.done(self)

    def keep(self, name: str, first: Tensor | None = None) -> Tensor:
        """A vector [d] of the algorithm's own that outlives a step, at first a copy of `first`, or zeros: change it in
        place. It is part of a checkpoint, local variables are not."""
        if name not in self.kept:
            self.kept[name] = self.x.new_zeros(self.x.shape) if first is None else first.clone()
        return self.kept[name]

    @property
    def lr(self) -> float:
        """The learning rate of the schedule for the step that comes next."""
        return self._engine.learning_rate(self)

    async def gradient(self, at: Tensor | None = None) -> Tensor:
        """Gradient [d] of the next mini-batch at the point `at` [d], which must not change until the answer comes; by
        default at a copy of x. EASGD takes it at the value before the elastic pull, EAMSGD at the look-ahead point.
        The weight decay of SGD is included: it acts where the gradient was taken, in every algorithm."""
        return await Gradient(self.x.clone() if at is None else at)

    async def mean_gradient(self) -> Tensor:
        """`gradient()` averaged over all workers, overlapped with the backward pass where it can be. x must stay as it
        is until the answer comes: large models have no time for a copy that nobody needs."""
        return await MeanGradient(self.x)

    async def mean_of_first(self, count: int) -> Tensor:
        """The mean [d] of the `gradient()`s of the `count` workers that are done first, the same in all workers. A
        worker that is too late finishes its gradient, which is dropped, while it makes the next steps with the others;
        then it takes part again. All workers must make this call, with the same count."""
        return await MeanOfFirst(self.x.clone(), count)

    async def busy(self, seconds: float) -> None:
        """Work beside gradients. The simulator adds the seconds; for real processes the work itself takes them."""
        await Busy(seconds)

    def step(self, g: Tensor) -> None:
        """One step of the local optimiser on x with the gradient g [d], at the schedule's rate. From now on the samples
        behind g count."""
        self._engine.step(self, g)

    @property
    def remembered(self) -> Sequence[Tensor]:
        """The vectors [d] that the local optimiser remembers, momentum or moments, to be changed in place; before the
        first step, and where it remembers nothing, there are none."""
        return self._engine.remembered(self)

    def forget(self) -> None:
        """Let the local optimiser begin anew, as before the first step."""
        self._engine.forget(self)

    async def all_reduce_mean(self, v: Tensor, size: float = 1.0) -> Tensor:
        """The mean [n] of v [n] over all workers, which must all take part."""
        return await AllReduceMean(v, size)

    async def exchange(
        self,
        v: Tensor | Mapping[int, Tensor],
        peers: Sequence[int],
        sources: Sequence[int] | None = None,
        size: float = 1.0,
    ) -> dict[int, Tensor]:
        """Send v [n] to all peers, or v[peer] to each of them, and receive theirs, concurrently and free of deadlock in
        any graph. In a directed graph the vectors come from other nodes, `sources`, than they go to. Returns
        {source: vector}."""
        vectors = {peer: v[peer] for peer in peers} if isinstance(v, Mapping) else dict.fromkeys(peers, v)
        return await Exchange(vectors, peers if sources is None else sources, size)

    def publish(self) -> None:
        """Make a copy of the present x what peers get from pull()."""
        self._engine.publish(self)

    async def pull(self, peer: int) -> Tensor | None:
        """The peer's last published vector [d]; None if the peer is dead or silent, which happens to real ones."""
        return await Pull(peer)

    async def push(self, peer: int, v: Tensor, size: float = 1.0) -> None:
        """Deliver v [n] to the peer's inbox; returns when it is there. To a dead peer, or one that takes nothing out of
        a full inbox, it is lost, and so are some in the simulator with `cluster.loss`."""
        await Push(peer, v, size)

    def inbox(self) -> list[Tensor]:
        """Take the vectors [n] that have been pushed to this worker since the last call, in order of arrival."""
        return self._engine.inbox(self)

    async def ask(self, peer: int, v: Tensor) -> Tensor | None:
        """The peer's answer [d] to v [d], for which it may change its x: see `Algorithm.answer`. None if the peer is
        dead or silent, which happens to real ones; a silent one may have changed its x all the same."""
        return await Ask(peer, v)

    async def call(self, operation: str, v: Tensor | None = None, *scalars: float, size: float = 1.0) -> Any:
        """Run the method `operation` of the parameter server with v [d] (each shard gets its own range) and scalars.
        Atomic on every shard. Returns the vector [d] of the shards' answers, or None where they answer nothing. With
        one shard v and its answer may be shorter: `size` is what either costs."""
        return await Call(operation, v, scalars, size)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Run a coroutine concurrently, up to its first wait at once; await what this returns for its result."""
        return self._engine.start(self, coroutine)


class Algorithm:
    """A way of distributing SGD: a frozen dataclass of its options whose `train` reads like its paper.

    lockstep: every worker makes the same number of steps; otherwise fast workers do more of the common budget. With
        `cluster.failures` one that fails in lock-step comes back with all that it had, and the others wait where they
        need it; another one comes back with a peer's or the servers' x and enters `train` anew, without what it kept.
    elastic: in lock-step, the others go on with means over those that are up. One that fails enters `train` anew with
        x, steps and all that a peer keeps, at the peer's call of `done`. For methods whose only communication is
        `all_reduce_mean`, awaited at once.
    barrier: every step waits for all workers, so that what is computed, marks included, does not depend on the cluster.
    servers: over how many nodes the centre is sharded; 0 for methods without one.
    backups: how many workers' samples do not count in a step of all; 0 for most methods.
    conserves: what communication leaves unchanged, which `eval.conservation` checks; None: nothing in one realisation.
        workers: the sum of the x_i, in lock-step between their k-th and their next steps, otherwise in every ask, whose
        answer the worker applies at once. workers and centre: the sum of the x_i and c, in every call, whose answer the
        worker applies at once; without servers as for workers, c being what the last worker keeps as "centre". centre:
        c and, in every call with a vector, the first scalar times that vector.
    """

    lockstep: ClassVar[bool] = False
    servers: int = 0
    backups: int = 0
    elastic: bool = False

    @property
    def barrier(self) -> bool:
        return False

    @property
    def conserves(self) -> str | None:
        return None

    @property
    def cycle(self) -> int:
        """After how many steps nothing is under way: there `train` can be entered anew with a worker of these steps, x
        and kept vectors, and goes on as if it had never left. Checkpoints of real processes are taken there."""
        return 1

    @property
    def output(self) -> str | None:
        """The vector that is the output model: an attribute of the server object, or without servers one that the
        workers keep, of which the last worker's counts. None: the servers' x, without servers the workers' mean."""
        return None

    @property
    def keeps(self) -> int:
        """How many vectors a worker keeps at most: checkpoints of real processes have a limited size."""
        return 8

    @property
    def needs_sgd(self) -> str | None:
        """What in these options gives a meaning to the steps of SGD alone, with the reason; None: any optimiser will
        do."""
        return None

    def check(self, nodes: int, lr: float, momentum: float) -> None:
        """Raise ValueError, before any work, for options that do not fit the number of workers or the local optimiser.

        lr: the highest rate of the schedule."""

    @property
    def needs_layout(self) -> bool:
        """Whether `check_layout` depends on the model, which has to be built then before anything is written."""
        return False

    def check_layout(self, layout: Sequence[tuple[int, ...]]) -> None:
        """Raise ValueError, before any work, for options that do not fit the model's parameters, of these shapes."""

    def warning(self, nodes: int, momentum: float) -> str | None:
        """One line on options that are allowed and hardly meant; None: there are none.

        momentum: of the local optimiser."""
        return None

    async def train(self, worker: Worker) -> None:
        """The algorithm, as run by one worker until `worker.done`."""
        raise NotImplementedError

    def answer(self, worker: Worker, v: Tensor) -> Tensor:
        """What a worker answers a peer that asks with v [d]: a vector [d] of its own, which nobody changes any more. It
        is run where all the worker's coroutines wait or have ended, takes no time, and may change x."""
        raise NotImplementedError

    def server(self, x: Tensor) -> Any:
        """A shard of the parameter server that starts at x, its range of the vector. Its attribute `x` is its range of
        what a late worker starts from, and of the output model unless `output` names another; its vectors are part of
        a checkpoint; its public methods are the operations of `Worker.call`."""
        raise NotImplementedError
