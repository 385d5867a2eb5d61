"""The narrow waist between algorithms and engines.

An algorithm is one coroutine per worker, `async def train(self, worker)`. **Time may pass at every `await`, and nowhere
else.** An `await` hands a request to the engine: a small frozen value. The simulator answers by adding virtual time,
real processes answer by doing the work. Algorithms see nothing else of an engine.

Two rules keep shared memory sound in both engines:

- a vector that you hand over (send, publish, reduce) belongs to the engine: hand over a clone, never `x` itself. The
  point of a gradient is an exception: it may be `x`, if nothing changes `x` until the answer arrives;
- other workers may share a vector that an `await` returned: read it, never write to it.

A vector that you send, reduce or exchange may be shorter than x, like a code, or longer, by a few numbers or by another
vector of x's length. It is a vector [n] of numbers of x's type. `size` is its cost relative to the cost of x: n / d.
(In a run without gradients, vectors have no numbers, so the engine cannot read the size from the vector.)
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
    """Ask the engine for something: `await request` hands the request over and returns the engine's answer."""

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
    """The mean of the first `count` of the workers' `Gradient(at)`. Later gradients are finished and discarded. Only
    then does their worker begin its next gradient, at the point of its latest request."""

    at: Tensor
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class AllReduceMean(Request):
    """The mean [n] over all workers of the vectors they contribute; leaves when the last one has entered.

    hidden: it began during the backward pass of the worker's latest gradient."""

    vector: Tensor
    size: float = 1.0
    hidden: bool = False


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
    """Deliver `vector` to the inbox of `peer`; the answer comes after its arrival, or when it cannot arrive."""

    peer: int
    vector: Tensor
    size: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Ask(Request):
    """The value of `Algorithm.answer` of `peer` for `vector`, at a moment when all coroutines of the peer wait or
    have ended; None if the peer cannot be reached."""

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
    """Work other than gradients that takes `seconds`: the simulator adds them, real processes do the work."""

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

    x: the flat parameter vector [d] (float32, in oracles float64), which the algorithm changes in place.
    rank: number of this worker, from 0. nodes: number of workers. rng: random stream of this worker alone.
    steps: number of local optimizer steps so far. layout: the shapes of the model's parameters, in the order of x."""

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
        """Return True when the budget is used up: after the same step on every worker for a lock-step algorithm,
        otherwise when all workers together have used the samples of the budget."""
        return self._engine.done(self)

    def keep(self, name: str, first: Tensor | None = None) -> Tensor:
        """Return the vector [d] that the algorithm keeps under a name; at first a copy of `first`, or zeros.

        Change it in place. It is part of a checkpoint; local variables are not."""
        if name not in self.kept:
            self.kept[name] = self.x.new_zeros(self.x.shape) if first is None else first.clone()
        return self.kept[name]

    @property
    def lr(self) -> float:
        """Return the learning rate of the schedule for the next step."""
        return self._engine.learning_rate(self)

    async def gradient(self, at: Tensor | None = None) -> Tensor:
        """Compute the gradient [d] of the next mini-batch at the point `at` [d], by default a copy of x.

        `at` must not change until the answer arrives. EASGD uses the value before the elastic pull, EAMSGD the
        look-ahead point. The weight decay of SGD is included, at the same point, in every algorithm."""
        return await Gradient(self.x.clone() if at is None else at)

    async def mean_gradient(self) -> Tensor:
        """Compute the mean [d] of all workers' `gradient()`, overlapped with the backward pass if possible.

        x must not change until the answer arrives, because x is not copied."""
        return await MeanGradient(self.x)

    async def mean_of_first(self, count: int) -> Tensor:
        """Compute the mean [d] of the first `count` gradients that are ready; all workers get the same mean.

        A late worker finishes its gradient, which is discarded, while it makes the next steps with the others. Then it
        takes part again. All workers must make this call, with the same count."""
        return await MeanOfFirst(self.x.clone(), count)

    async def busy(self, seconds: float) -> None:
        """Work for some seconds on something other than gradients.

        The simulator adds the seconds. In real processes, the work itself takes time."""
        await Busy(seconds)

    def step(self, g: Tensor) -> None:
        """Make one step of the local optimizer on x with the gradient g [d], at the schedule's rate. The samples of g
        count from now on."""
        self._engine.step(self, g)

    @property
    def remembered(self) -> Sequence[Tensor]:
        """Return the vectors [d] of the local optimizer's state, momentum or moments; you may change them in place.

        Before the first step, and without such a state, the list is empty."""
        return self._engine.remembered(self)

    def forget(self) -> None:
        """Reset the local optimizer to its state before the first step."""
        self._engine.forget(self)

    async def all_reduce_mean(self, v: Tensor, size: float = 1.0) -> Tensor:
        """Compute the mean [n] of v [n] over all workers. All workers must take part."""
        return await AllReduceMean(v, size)

    async def hidden_mean(self, v: Tensor) -> Tensor:
        """Compute the same mean of a v [d] that followed from the latest gradient layer by layer: it began during that
        backward pass. Only for algorithms with `hides_sums`."""
        return await AllReduceMean(v, hidden=True)

    async def exchange(
        self,
        v: Tensor | Mapping[int, Tensor],
        peers: Sequence[int],
        sources: Sequence[int] | None = None,
        size: float = 1.0,
    ) -> dict[int, Tensor]:
        """Send v [n] to all peers, or v[peer] to each of them, and receive theirs. Returns {source: vector}.

        Works concurrently and without deadlock in any graph. In a directed graph, name the senders as `sources`."""
        vectors = {peer: v[peer] for peer in peers} if isinstance(v, Mapping) else dict.fromkeys(peers, v)
        return await Exchange(vectors, peers if sources is None else sources, size)

    def publish(self) -> None:
        """Publish a copy of x, which peers get by `pull`."""
        self._engine.publish(self)

    async def pull(self, peer: int) -> Tensor | None:
        """Get the peer's last published vector [d]; None if the peer is dead or silent, as in real processes."""
        return await Pull(peer)

    async def push(self, peer: int, v: Tensor, size: float = 1.0) -> None:
        """Deliver v [n] to the peer's inbox; returns when it is there.

        The vector is lost if the peer is dead, or if its inbox stays full. The simulator also loses some vectors with
        `cluster.loss`."""
        await Push(peer, v, size)

    def inbox(self) -> list[Tensor]:
        """Take the vectors [n] that have been pushed to this worker since the last call, in order of arrival."""
        return self._engine.inbox(self)

    async def ask(self, peer: int, v: Tensor) -> Tensor | None:
        """Send v [d] to a peer and return the peer's answer [d]; see `Algorithm.answer`, which may change the peer's x.

        Returns None if the peer is dead or silent. A silent peer may still have changed its x."""
        return await Ask(peer, v)

    async def call(self, operation: str, v: Tensor | None = None, *scalars: float, size: float = 1.0) -> Any:
        """Run the method `operation` of the parameter server with v [d] (each shard gets its range) and scalars.

        The call is atomic on every shard. Returns the vector [d] of the shards' answers, or None if there are none.
        With a single shard, v and the answer may be shorter; `size` is the cost of each."""
        return await Call(operation, v, scalars, size)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Run a coroutine concurrently: at once up to its first wait. Await the returned object for its result."""
        return self._engine.start(self, coroutine)


class Algorithm:
    """A way of distributing SGD: a frozen dataclass of its options whose `train` reads like its paper.

    lockstep: every worker makes the same number of steps; otherwise fast workers do more of the common budget. With
        `cluster.failures`, a lock-step worker returns with its whole state, and the others wait when they need it. A
        worker of another method returns with the x of a peer or the servers, and `train` starts again without its kept
        vectors.
    elastic: in lock-step, the others continue with means over the running workers. For a worker that returns, `train`
        starts again with x, steps and all kept vectors of a peer, at the peer's call of `done`. For methods whose only
        communication is `all_reduce_mean`, awaited at once.
    barrier: every step waits for all workers, so the results, evaluations included, do not depend on the cluster.
    servers: number of nodes that share the centre; 0 for methods without a centre.
    backups: number of workers whose samples do not count in a common step; 0 for most methods.
    hides_sums: sums begin during a backward pass, which the simulator alone can time, by formulas.
    conserves: the sum that communication leaves unchanged, for `eval.conservation`; None: no sum in a single run.
        workers: the sum of the x_i, in lock-step between their k-th and their next steps, otherwise in every ask, whose
        answer the worker applies at once. workers and centre: the sum of the x_i and c, in every call, whose answer the
        worker applies at once; without servers as for workers, c being what the last worker keeps as "centre". centre:
        c and, in every call with a vector, the first scalar times that vector."""

    lockstep: ClassVar[bool] = False
    servers: int = 0
    backups: int = 0
    elastic: bool = False

    @property
    def barrier(self) -> bool:
        return False

    @property
    def hides_sums(self) -> bool:
        return False

    @property
    def conserves(self) -> str | None:
        return None

    @property
    def cycle(self) -> int:
        """Return the number of steps after which no operation is in flight.

        There, `train` can start again with a worker of the same steps, x and kept vectors, and continues as if it had
        never stopped. Real processes take their checkpoints there, where `train` asks `worker.done`: never between a
        step and its average."""
        return 1

    @property
    def output(self) -> str | None:
        """Name the vector that is the output model: an attribute of the server object, or without servers a kept vector
        of the last worker. None: the servers' x, or without servers the workers' mean."""
        return None

    @property
    def keeps(self) -> int:
        """Return the maximum of vectors that a worker keeps: checkpoints of real processes have a limited size."""
        return 8

    @property
    def needs_sgd(self) -> str | None:
        """Name the option that allows SGD as the only local optimizer, with the reason; None: any optimizer works."""
        return None

    def check(self, nodes: int, lr: float, momentum: float) -> None:
        """Raise ValueError, before any work, for options that do not fit the number of workers or the local optimiser.

        lr: the highest rate of the schedule."""

    @property
    def needs_layout(self) -> bool:
        """Return whether `check_layout` may raise: then the model is built before anything is written."""
        return False

    def check_layout(self, layout: Sequence[tuple[int, ...]]) -> str | None:
        """Return one line about options that hardly fit the model's parameters, of these shapes; None: they fit. Raise
        ValueError, before any work, for options that do not."""
        return None

    def warning(self, nodes: int, momentum: float) -> str | None:
        """Return one line about allowed options that are probably a mistake, or None.

        momentum: momentum of the local optimizer."""
        return None

    async def train(self, worker: Worker) -> None:
        """Train one worker until `worker.done`. This is the algorithm."""
        raise NotImplementedError

    def answer(self, worker: Worker, v: Tensor) -> Tensor:
        """Answer a peer that asks with v [d]: return a vector [d] that does not change any more.

        The engine calls this when all of the worker's coroutines wait or have ended. It takes no time, and may change
        x."""
        raise NotImplementedError

    def server(self, x: Tensor) -> Any:
        """Return a shard of the parameter server. x: the shard's range of the initial vector.

        The shard's attribute `x` is its range of the parameters that a late worker starts from, and of the output model
        unless `output` names another vector. Its vectors are part of a checkpoint. Its public methods are the
        operations of `Worker.call`. If it has an attribute `layout`, the engine sets it to the shapes of the model's
        parameters; if it has `staleness`, before each operation, to the updates since the worker's last read."""
        raise NotImplementedError
