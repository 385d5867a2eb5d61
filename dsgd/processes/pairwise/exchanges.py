"""Which vectors belong together: exchanges are numbered per pair, and answered in order."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from torch import Tensor

from dsgd.processes.pairwise.channel import CLOSED, Unreachable
from dsgd.processes.pairwise.wire import SLICES

LOOK_S = 1.0  # how often a source is asked whether it lives, as long as it has no connection here that would tell
AHEAD = 16  # vectors of one source that are kept before this node has begun the exchanges they belong to


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """One exchange of this node. numbers: which exchange with each source it is. lost: nodes that cannot be reached.
    asked: sources that have been asked whether they live and have not answered yet."""

    future: Future[dict[int, Tensor]]
    numbers: dict[int, int]
    lost: dict[int, Unreachable] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)


class Exchanges:
    """The exchanges of this node that wait for vectors, and the vectors that wait for exchanges."""

    def __init__(
        self,
        timeout_s: float,
        received: Callable[[int], int],
        ping: Callable[[int, Callable[[Unreachable | None], None]], None],
        log: Callable[[str], None],
    ) -> None:
        """received: how many bytes have come from a rank so far. timeout_s: how long none may come from a source.
        ping: asks a rank whether it lives, and tells the given function what is wrong with it, or None."""
        self._slice_s = timeout_s / SLICES
        self._timeout_s = timeout_s
        self._received = received
        self._ping = ping
        self._log = log
        self._changed = threading.Condition()  # guards all that follows
        self._mail: dict[tuple[int, int], Tensor] = {}  # (source, number)
        self._begun: Counter[int] = Counter()  # exchanges with each source
        self._answered: Counter[int] = Counter()
        self._connected: dict[int, bool] = {}
        self._waiting: deque[Exchange] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None

    def begin(self, sources: Sequence[int]) -> Exchange:
        """A new exchange that waits for one vector from each source."""
        future: Future[dict[int, Tensor]] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            exchange = Exchange(future, {source: self._begun[source] for source in sources})
            self._begun.update(exchange.numbers.keys())
            if exchange.numbers and not self._closing:
                self._waiting.append(exchange)
                self._changed.notify_all()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="dsgd exchanges", daemon=True)
                    self._thread.start()
                return exchange
        if exchange.numbers:
            future.set_exception(Unreachable(next(iter(exchange.numbers)), CLOSED))
        else:
            future.set_result({})
        return exchange

    def unsent(self, exchange: Exchange, error: Unreachable) -> None:
        """The vector of an exchange could not be sent to a target."""
        with self._changed:
            exchange.lost[error.rank] = error
            self._changed.notify_all()
        if exchange.future.done():
            self._log(f"a vector was not sent: {error}")

    def room(self, source: int, number: int) -> None:
        """Wait until a vector may be received: a fast node must not fill the memory of a slow one."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or number < self._begun[source] + AHEAD)

    def arrived(self, source: int, number: int, vector: Tensor) -> None:
        with self._changed:
            if number >= self._answered[source]:  # else its exchange has failed without it
                self._mail[source, number] = vector
                self._changed.notify_all()

    def connected(self, rank: int, now: bool) -> None:
        """A rank has connected, or has gone."""
        with self._changed:
            self._connected[rank] = now
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                exchange = self._waiting[0]
                error = self._wait(exchange)
                vectors = {key[0]: self._mail.pop(key) for key in exchange.numbers.items() if key in self._mail}
                self._answered.update(exchange.numbers.keys())
                self._waiting.popleft()
            if error is None:
                exchange.future.set_result(vectors)
            else:
                exchange.future.set_exception(error)
            del exchange, vectors, error  # memory that only this thread holds on to

    def _wait(self, exchange: Exchange) -> Unreachable | None:
        """Wait until one vector from each source is there; what came before a failure counts. Returns the failure."""
        waited_s = dict.fromkeys(exchange.numbers, 0.0)
        seen = {source: self._received(source) for source in exchange.numbers}
        while missing := [source for source, number in exchange.numbers.items() if (source, number) not in self._mail]:
            if self._closing:
                return Unreachable(missing[0], CLOSED)
            unknown = [source for source in missing if source not in self._connected]
            for source in unknown:
                self._ask(exchange, source)
            if error := self._loss(exchange, missing):
                return error
            begin = time.monotonic()
            slice_s = min(self._slice_s, LOOK_S) if unknown else self._slice_s
            self._changed.wait(slice_s)
            passed_s = min(time.monotonic() - begin, slice_s)  # more than a slice: it is we who were stopped
            for source in missing:
                received = self._received(source)
                waited_s[source] = 0.0 if received != seen[source] else waited_s[source] + passed_s
                seen[source] = received
                if waited_s[source] > self._timeout_s:
                    return Unreachable(source, f"no byte of its vector for {self._timeout_s:g} s")
        return None

    def _ask(self, exchange: Exchange, source: int) -> None:
        """Find out whether a source lives that has no connection whose end would tell of its death."""
        if source in exchange.asked:
            return

        def answered(error: Unreachable | None) -> None:
            with self._changed:
                exchange.asked.discard(source)
                if error is not None:
                    exchange.lost[source] = error
                    self._changed.notify_all()

        exchange.asked.add(source)
        self._ping(source, answered)

    def _loss(self, exchange: Exchange, missing: Sequence[int]) -> Unreachable | None:
        for source in missing:
            connected = self._connected.get(source)
            if connected is False or (source in exchange.lost and not connected):
                lost = exchange.lost.get(source)
                return Unreachable(source, "connection closed" if lost is None else lost.reason)
        return next((error for target, error in exchange.lost.items() if target not in exchange.numbers), None)

    def close(self) -> None:
        """Fail what is still waiting."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def join(self, patience_s: float) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(patience_s)
