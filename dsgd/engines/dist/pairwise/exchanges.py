"""Match vectors to the exchanges they belong to. Exchanges are numbered per pair and complete in order."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from torch import Tensor

from dsgd.engines.dist.io_thread import SLICES_PER_WAIT, IoTask, Signal, loop
from dsgd.engines.dist.pairwise.channel import CLOSED, Unreachable

PING_SOURCE_S = 1.0  # interval of pings to a source without a connection here, whose end would show its death
MAX_AHEAD = 16  # vectors of one source that are kept before this node has begun the exchanges they belong to


@dataclass(frozen=True, slots=True, eq=False)
class WaitingExchange:
    """An exchange that waits for its vectors.

    sequence: its number with each source. lost: nodes that cannot be reached. pinged: sources whose answer is due."""

    future: Future[dict[int, Tensor]]
    sequence: dict[int, int]
    lost: dict[int, Unreachable] = field(default_factory=dict)
    pinged: set[int] = field(default_factory=set)


class Exchanges:
    """Keep the exchanges of this node that wait for vectors, and the vectors that wait for exchanges. For the thread of
    the plane's loop only."""

    def __init__(
        self,
        timeout_s: float,
        received: Callable[[int], int],
        ping: Callable[[int, Callable[[Unreachable | None], None]], None],
        log: Callable[[str], None],
    ) -> None:
        """received: returns the bytes received from a rank so far. timeout_s: maximum time without bytes from a source.
        ping: asks a rank for a sign of life, and calls the given function with its failure, or None."""
        self._slice_s = timeout_s / SLICES_PER_WAIT
        self._timeout_s = timeout_s
        self._received = received
        self._ping = ping
        self._log = log
        self._changed = Signal()
        self._rooms: dict[int, Signal] = defaultdict(Signal)  # for sources whose vectors arrived too early
        self._arrived: dict[tuple[int, int], Tensor] = {}  # by (source, sequence)
        self._begun: Counter[int] = Counter()  # exchanges with each source
        self._completed: Counter[int] = Counter()
        self._connected: dict[int, bool] = {}
        self._waiting: deque[WaitingExchange] = deque()
        self._closing = False
        self.task: IoTask | None = None

    def begin(self, sources: Sequence[int], future: Future[dict[int, Tensor]]) -> WaitingExchange:
        """Begin an exchange that waits for one vector from each source. future: future of the vectors."""
        exchange = WaitingExchange(future, {source: self._begun[source] for source in sources})
        self._begun.update(exchange.sequence.keys())
        for source in sources:
            self._rooms[source].set()
        if sources and self._closing:
            future.set_exception(Unreachable(sources[0], CLOSED))
        elif sources:
            self._waiting.append(exchange)
            self._changed.set()
            if self.task is None:
                self.task = loop().start(self._work())
        return exchange

    def target_lost(self, exchange: WaitingExchange, error: Unreachable) -> None:
        """Record that the vector of an exchange could not be sent to a target."""
        exchange.lost[error.rank] = error
        self._changed.set()
        if exchange.future.done():
            self._log(f"a vector was not sent: {error}")

    async def wait_for_room(self, source: int, sequence: int) -> None:
        """Wait until a vector may be received: a fast node must not fill the memory of a slow one."""
        while not self._closing and sequence >= self._begun[source] + MAX_AHEAD:
            await self._rooms[source].wait()

    def arrived(self, source: int, sequence: int, vector: Tensor) -> None:
        """Take in a vector. It is dropped if its exchange has failed without it."""
        if sequence >= self._completed[source]:
            self._arrived[source, sequence] = vector
            self._changed.set()

    def set_connected(self, rank: int, connected: bool) -> None:
        """Record that a rank has connected, or that its connection has ended."""
        self._connected[rank] = connected
        self._changed.set()

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                if self._closing:
                    return
                await self._changed.wait()
            exchange = self._waiting[0]
            error = await self._wait(exchange)
            vectors = {key[0]: self._arrived.pop(key) for key in exchange.sequence.items() if key in self._arrived}
            self._completed.update(exchange.sequence.keys())
            self._waiting.popleft()
            if error is None:
                exchange.future.set_result(vectors)
            else:
                exchange.future.set_exception(error)
            del exchange, vectors, error  # releases the memory

    async def _wait(self, exchange: WaitingExchange) -> Unreachable | None:
        """Wait until one vector from each source has arrived; earlier vectors count. Returns the failure."""
        waited_s = dict.fromkeys(exchange.sequence, 0.0)
        seen = {source: self._received(source) for source in exchange.sequence}
        while missing := [source for source, n in exchange.sequence.items() if (source, n) not in self._arrived]:
            if self._closing:
                return Unreachable(missing[0], CLOSED)
            unknown = [source for source in missing if source not in self._connected]
            for source in unknown:
                self._ping_source(exchange, source)
            if error := self._failure(exchange, missing):
                return error
            begin = time.monotonic()
            slice_s = min(self._slice_s, PING_SOURCE_S) if unknown else self._slice_s
            await self._changed.wait(slice_s)
            passed_s = min(time.monotonic() - begin, slice_s)  # more than a slice: this process was stopped
            for source in missing:
                received = self._received(source)
                waited_s[source] = 0.0 if received != seen[source] else waited_s[source] + passed_s
                seen[source] = received
                if waited_s[source] > self._timeout_s:
                    return Unreachable(source, f"no byte of its vector for {self._timeout_s:g} s")
        return None

    def _ping_source(self, exchange: WaitingExchange, source: int) -> None:
        """Ping a source that has not connected here, unless its answer to an earlier ping is still due."""
        if source in exchange.pinged:
            return

        def answered(error: Unreachable | None) -> None:
            exchange.pinged.discard(source)
            if error is not None:
                exchange.lost[source] = error
                self._changed.set()

        exchange.pinged.add(source)
        self._ping(source, answered)

    def _failure(self, exchange: WaitingExchange, missing: Sequence[int]) -> Unreachable | None:
        """Return why an exchange cannot complete: a missing source is gone, or another target is lost."""
        for source in missing:
            connected = self._connected.get(source)
            if connected is False or (source in exchange.lost and not connected):
                lost = exchange.lost.get(source)
                return Unreachable(source, "connection closed" if lost is None else lost.reason)
        return next((error for target, error in exchange.lost.items() if target not in exchange.sequence), None)

    def close(self) -> None:
        """Fail the exchanges that still wait."""
        self._closing = True
        self._changed.set()
        for room in self._rooms.values():
            room.set()
