"""Send requests to one peer, over a connection that is made when it is first needed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from dsgd.processes.pairwise.attach import attach
from dsgd.processes.pairwise.frame_socket import FrameSocket, LocalNode, PeerSilent, connect, handshake
from dsgd.processes.pairwise.wire import Frame, Kind, ProtocolViolation, Status

CLOSED = "the plane was closed here"
GIVEN_UP_SOON = (Kind.PULL, Kind.PUSH, Kind.ASK)  # at once where the peer is away
ALLOWED_ANSWERS = {  # and whether each has a payload
    (Kind.PING, Status.OK): (False,),
    (Kind.PULL, Status.OK): (True,),
    (Kind.PULL, Status.NOTHING): (False,),
    (Kind.PUSH, Status.OK): (False,),
    (Kind.PUSH, Status.BUSY): (False,),
    (Kind.ASK, Status.OK): (True,),
    (Kind.ASK, Status.NOTHING): (False,),
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
class PeerRequest:
    """A frame to send and the callbacks for its answer: exactly one of them is called, once.

    done: takes the answer's frame and its vector, or its text where the status is FAILED; (frame, None) of the request
    itself, once it is written, for an EXCHANGE. patience_s: how long no byte may move.
    """

    frame: Frame
    vector: Tensor | None
    patience_s: float
    done: Callable[[Frame, Tensor | str | None], None] = lambda frame, content: None
    failed: Callable[[Unreachable], None] = lambda error: None


class Channel:
    """Send requests to one peer, in order, from a thread of its own.

    After a failure the peer counts as away: pulls, pushes and asks fail at once, while the thread sends a ping every
    patience_s until the peer answers. Exchanges and calls have more patience and try to connect themselves.
    """

    def __init__(self, rank: int, node: LocalNode) -> None:
        """rank: of the peer."""
        self._rank = rank
        self._node = node
        self._probe = PeerRequest(Frame(Kind.PING), None, node.patience_s)
        self._changed = threading.Condition()  # guards all that follows
        self._address: tuple[str, int] | None = None
        self._moves = 0  # changes of the address
        self._link: FrameSocket | None = None
        self._linked = 0  # the number of moves when the link was made
        self._away: str | None = None  # why the peer cannot be reached
        self._queue: deque[PeerRequest] = deque()
        self._current: PeerRequest | None = None
        self._closing = self._aborted = False
        self._thread: threading.Thread | None = None

    def relocate(self, address: tuple[str, int] | None) -> None:
        """Set the peer's address. The request that is under way at the old address fails."""
        with self._changed:
            self._address = address
            self._moves += 1
            self._away = None
            if self._link is not None:
                self._link.shutdown()
            self._changed.notify()

    def submit(self, request: PeerRequest) -> None:
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

    def _refusal(self, request: PeerRequest) -> str | None:
        if self._closing:
            return CLOSED
        if self._address is None:
            return "its address is not known"
        return self._away if request.frame.kind in GIVEN_UP_SOON else None

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
                reason = self._away if request.frame.kind in GIVEN_UP_SOON else None
                was_away = self._away is not None
                address, moves = self._address, self._moves
            if reason is not None:
                request.failed(Unreachable(self._rank, reason))
                continue
            assert address is not None
            reason = answer = content = None
            try:
                answer, content = self._ask(request, address, moves)
            except (OSError, PeerSilent, ProtocolViolation) as error:
                reason = self._give_up(error)
            with self._changed:  # before the callbacks: a request that they make must see the new state
                if moves == self._moves:
                    self._away = reason
                # Only the connection may have broken: then a first probe, at once, finds the peer again.
                wait_s = None if self._away is None else self._node.patience_s if was_away else 0.0
                self._current = None
            if reason is not None:
                request.failed(Unreachable(self._rank, reason))
            elif answer is not None:
                request.done(answer, content)
            del request, answer, content  # and the vectors they hold
        self._drop()

    def _ask(self, request: PeerRequest, address: tuple[str, int], moves: int) -> tuple[Frame, Tensor | str | None]:
        """Send a request and receive its answer."""
        asked = request.frame
        link = self._connected(address, moves, request.patience_s)
        self._node.sent(link.send(asked, request.vector, request.patience_s))
        if asked.kind == Kind.EXCHANGE:
            return asked, None
        frame = link.receive(self._node.settings, request.patience_s)
        if frame.kind != asked.kind or (frame.payload >= 0) not in ALLOWED_ANSWERS.get((frame.kind, frame.status), ()):
            raise ProtocolViolation(
                f"{frame.kind.name} {frame.status.name} of {frame.payload} bytes to {asked.kind.name}"
            )
        if frame.status == Status.FAILED:
            return frame, link.read(frame.payload, request.patience_s).decode(errors="replace")
        return frame, None if frame.payload < 0 else link.receive_vector(frame, self._node, request.patience_s)

    def _give_up(self, error: Exception) -> str:
        """Close the connection, since nothing more can come over it, and return the reason in words."""
        self._drop()
        if isinstance(error, ProtocolViolation):
            self._node.log(f"disconnected from worker {self._rank}, which sent {error}")
        return CLOSED if self._closing else (getattr(error, "strerror", None) or str(error)).lower()

    def _connected(self, address: tuple[str, int], moves: int, patience_s: float) -> FrameSocket:
        """Return the connection to the peer at this address, a new one if need be."""
        with self._changed:
            if self._link is not None and self._linked == moves:
                return self._link
        self._drop()
        link = FrameSocket(connect(address, patience_s, self._cancelled), self._node.slice_s)
        with self._changed:
            self._link, self._linked = link, moves  # before the handshake: `close` must be able to wake this thread
            if moves != self._moves or self._cancelled():
                link.shutdown()
        handshake(link, self._node.settings.encode_hello(self._node.rank, self._rank), patience_s)
        if self._node.attaches and link.is_within_host:
            attach(link, self._node.settings, patience_s)
        return link

    def _cancelled(self) -> bool:
        """Check whether the current request is no longer wanted."""
        current = self._current
        return self._aborted or (self._closing and current is not None and current.frame.kind != Kind.EXCHANGE)

    def _drop(self) -> None:
        with self._changed:
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def close(self, abort: bool) -> None:
        """Fail all requests and end the thread. Without `abort`, the vectors of exchanges are written first."""
        with self._changed:
            self._closing, self._aborted = True, abort
            kept = deque(request for request in self._queue if request.frame.kind == Kind.EXCHANGE and not abort)
            dropped = [request for request in self._queue if request not in kept]
            self._queue = kept
            if self._link is not None and self._cancelled():
                self._link.shutdown()
            self._changed.notify()
        for request in dropped:
            request.failed(Unreachable(self._rank, CLOSED))

    def join(self, limit_s: float) -> None:
        join_thread(self._thread, limit_s)


def join_thread(thread: threading.Thread | None, limit_s: float) -> None:
    """Wait for the end of a thread, unless it was never started or is the calling one."""
    if thread is not None and thread is not threading.current_thread():
        thread.join(limit_s)
