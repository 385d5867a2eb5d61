"""The asking side of one pair of nodes: a queue, a thread, a connection that is made when it is first needed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from dsgd.processes.pairwise.published import Buffers
from dsgd.processes.pairwise.wire import Frame, Kind, Link, Run, Silent, Status, Violation, connect, greeted, octets

CLOSED = "the plane was closed here"
ANSWERS = {  # what may be answered, and whether it carries something
    (Kind.PING, Status.OK): (False,),
    (Kind.PULL, Status.OK): (True,),
    (Kind.PULL, Status.NOTHING): (False,),
    (Kind.PUSH, Status.OK): (False,),
    (Kind.PUSH, Status.BUSY): (False,),
    (Kind.CALL, Status.OK): (False, True),
    (Kind.CALL, Status.FAILED): (True,),
}


class Unreachable(Exception):
    """A node does not answer: it is dead, stopped, or cut off."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(rank, reason)
        self.rank = rank
        self.reason = reason

    def __str__(self) -> str:
        return f"worker {self.rank} cannot be reached: {self.reason}"


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What to ask and whom to tell: exactly one of `done` and `failed` is called, once.

    done: takes the answer's frame and its vector, or its text where the status is FAILED; (frame, None) of the request
    itself, once it is written, for an EXCHANGE. patience_s: how long no byte may move.
    """

    frame: Frame
    vector: Tensor | None
    patience_s: float
    done: Callable[[Frame, Tensor | str | None], None]
    failed: Callable[[Unreachable], None]


class Channel:
    """Requests to one peer, served in order.

    After a failure the peer is away: pulls and pushes fail at once, while the thread here tries again every retry_s
    until the peer answers. Exchanges and calls have more patience than that and try for themselves.
    """

    def __init__(self, rank: int, own_rank: int, run: Run, buffers: Buffers, slice_s: float, retry_s: float,
                 sent: Callable[[int], None], log: Callable[[str], None]) -> None:  # fmt: skip
        """sent: told the bytes of every vector that has been written. slice_s: see wire.Link."""
        self._rank = rank
        self._hello = run.hello(own_rank, rank)
        self._run = run
        self._buffers = buffers
        self._slice_s = slice_s
        self._sent = sent
        self._log = log
        self._probe = Request(Frame(Kind.PING), None, retry_s, lambda frame, vector: None, lambda error: None)
        self._retry_s = retry_s
        self._changed = threading.Condition()  # guards all that follows
        self._address: tuple[str, int] | None = None
        self._moves = 0  # how often the address has changed
        self._link: Link | None = None
        self._linked = 0  # the number of moves when the link was made
        self._away: str | None = None  # why the peer cannot be reached
        self._queue: deque[Request] = deque()
        self._current: Request | None = None
        self._closing = self._aborted = False
        self._thread: threading.Thread | None = None

    def relocate(self, address: tuple[str, int] | None) -> None:
        """From now on the peer is there. What is being asked at the old address fails."""
        with self._changed:
            self._address = address
            self._moves += 1
            self._away = None
            if self._link is not None:
                self._link.end()
            self._changed.notify()

    def submit(self, request: Request) -> None:
        """Queue a request, or fail it at once. Does no input or output."""
        with self._changed:
            reason = self._refusal(request)
            if reason is None:
                self._queue.append(request)
                self._changed.notify()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name=f"dsgd channel {self._rank}", daemon=True)
                    self._thread.start()
        if reason is not None:
            request.failed(Unreachable(self._rank, reason))

    def _refusal(self, request: Request) -> str | None:
        if self._closing:
            return CLOSED
        if self._address is None:
            return "its address is not known"
        return self._away if request.frame.kind in (Kind.PULL, Kind.PUSH) else None

    def _work(self) -> None:
        wait_s = None  # until the next probe
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing, wait_s)
                if self._closing and not self._queue:
                    break
                request = self._queue.popleft() if self._queue else self._probe
                if request is self._probe and self._away is None:
                    wait_s = None  # it has been relocated
                    continue
                self._current = request
                reason = self._away if request.frame.kind in (Kind.PULL, Kind.PUSH) else None
                was_away = self._away is not None
                address, moves = self._address, self._moves
            if reason is not None:
                request.failed(Unreachable(self._rank, reason))
                continue
            assert address is not None
            reason = answer = content = None
            try:
                answer, content = self._ask(request, address, moves)
            except (OSError, Silent, Violation) as error:
                reason = self._give_up(error)
            with self._changed:  # before anybody is told: who asks again at once must find it so
                if moves == self._moves:
                    self._away = reason
                # Only the connection may have broken: then a first probe, at once, finds the peer again.
                wait_s = None if self._away is None else self._retry_s if was_away else 0.0
                self._current = None
            if reason is not None:
                request.failed(Unreachable(self._rank, reason))
            elif answer is not None:
                request.done(answer, content)
            del request, answer, content  # and the vectors they hold
        self._drop()

    def _ask(self, request: Request, address: tuple[str, int], moves: int) -> tuple[Frame, Tensor | str | None]:
        link = self._connected(address, moves, request.patience_s)
        link.send(request.frame, request.vector, request.patience_s)
        if request.vector is not None:
            self._sent(len(octets(request.vector)))
        return (request.frame, None) if request.frame.kind == Kind.EXCHANGE else self._answer(link, request)

    def _give_up(self, error: Exception) -> str:
        """After this nothing more can come over the connection. Returns the reason in words."""
        self._drop()
        if isinstance(error, Violation):
            self._log(f"disconnected from worker {self._rank}, which sent {error}")
        return CLOSED if self._closing else (getattr(error, "strerror", None) or str(error)).lower()

    def _connected(self, address: tuple[str, int], moves: int, patience_s: float) -> Link:
        """The connection to the peer at this address, a new one if need be."""
        with self._changed:
            if self._link is not None and self._linked == moves:
                return self._link
        self._drop()
        link = Link(connect(address, patience_s, self._unwanted), self._slice_s)
        with self._changed:
            self._link, self._linked = link, moves  # before the hello: whoever closes must be able to wake us
            if moves != self._moves or self._unwanted():
                link.end()
        greeted(link, self._hello, patience_s)
        return link

    def _unwanted(self) -> bool:
        current = self._current
        return self._aborted or (self._closing and current is not None and current.frame.kind != Kind.EXCHANGE)

    def _answer(self, link: Link, request: Request) -> tuple[Frame, Tensor | str | None]:
        frame = link.receive(self._run, request.patience_s)
        carries = ANSWERS.get((frame.kind, frame.status), ())
        if frame.kind != request.frame.kind or (frame.payload >= 0) not in carries:
            raise Violation(
                f"{frame.kind.name} {frame.status.name} of {frame.payload} bytes to {request.frame.kind.name}"
            )
        if frame.status == Status.FAILED:
            return frame, link.read(frame.payload, request.patience_s).decode(errors="replace")
        if frame.payload < 0:
            return frame, None
        vector = self._buffers.take(frame.payload // self._run.dtype.itemsize)
        link.read_into(octets(vector), request.patience_s)
        return frame, vector

    def _drop(self) -> None:
        with self._changed:
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def finish(self) -> None:
        """End as soon as the exchanges' vectors are written; everything else fails now."""
        with self._changed:
            self._closing = True
            dropped = [request for request in self._queue if request.frame.kind != Kind.EXCHANGE]
            self._queue = deque(request for request in self._queue if request.frame.kind == Kind.EXCHANGE)
            if self._link is not None and self._unwanted():
                self._link.end()
            self._changed.notify()
        for request in dropped:
            request.failed(Unreachable(self._rank, CLOSED))

    def abort(self) -> None:
        """End now."""
        with self._changed:
            self._closing = self._aborted = True
            dropped, self._queue = self._queue, deque()
            if self._link is not None:
                self._link.end()
            self._changed.notify()
        for request in dropped:
            request.failed(Unreachable(self._rank, CLOSED))

    def join(self, patience_s: float) -> bool:
        """Wait for the thread; True when it has ended. Nobody waits for himself."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(patience_s)
            return not self._thread.is_alive()
        return True
