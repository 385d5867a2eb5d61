"""Answer the frames of one connection, in the thread of that connection."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torch import Tensor

from dsgd.processes.pairwise.exchanges import Exchanges
from dsgd.processes.pairwise.frame_socket import FrameSocket
from dsgd.processes.pairwise.vector_pool import PublishedVector, VectorPool
from dsgd.processes.pairwise.wire import MAX_TEXT_BYTES, Frame, Kind, PlaneSettings, ProtocolViolation, Status

Operation = Callable[[int, str, Tensor | None, tuple[float, ...]], tuple[Tensor | None, int]]


class Inbox:
    """Hold the vectors that were pushed to this node, in order of arrival, at most `capacity` of them."""

    def __init__(self, capacity: int) -> None:
        self._vectors: list[tuple[Tensor, int, int]] = []
        self._free = capacity  # places that are neither taken nor reserved
        self._lock = threading.Lock()

    def reserve(self) -> bool:
        """Reserve a place for a vector that is arriving; returns False when there is none."""
        with self._lock:
            free = self._free > 0
            self._free -= free
            return free

    def cancel(self) -> None:
        """Give a reserved place back."""
        with self._lock:
            self._free += 1

    def put(self, vector: Tensor, sender: int, steps: int) -> None:
        """Fill a reserved place."""
        with self._lock:
            self._vectors.append((vector, sender, steps))

    def take(self) -> list[tuple[Tensor, int, int]]:
        """Remove and return all vectors, with their senders and the senders' steps."""
        with self._lock:
            taken, self._vectors = self._vectors, []
            self._free += len(taken)
            return taken


class Responder:
    """Answer the requests of peers.

    A peer may be silent in the middle of a message for timeout_s, the longer limit: a slow reader costs one thread and
    one published vector, and nobody else waits for it."""

    def __init__(self, rank: int, settings: PlaneSettings, pool: VectorPool, exchanges: Exchanges, timeout_s: float,
                 patience_s: float, sent: Callable[[int], None], log: Callable[[str], None]) -> None:  # fmt: skip
        """sent: called with the bytes of every vector that was written."""
        self._rank = rank
        self._settings = settings
        self._pool = pool
        self._exchanges = exchanges
        self._timeout_s = timeout_s
        self._first_s = patience_s / 2  # a pull before the first publish is answered before the peer gives up
        self._sent = sent
        self._log = log
        self._operating = threading.Lock()
        self.operation: Operation | None = None
        self.published = PublishedVector(settings.dtype, readers=settings.nodes)
        self.inbox = Inbox(max(4, 2 * (settings.nodes - 1)))
        self.steps = 0

    def serve(self, rank: int, link: FrameSocket) -> None:
        """Answer a node until its connection ends. Raises the cause: OSError, PeerSilent, ProtocolViolation."""
        while True:
            link.wait_readable()
            frame = link.receive(self._settings, self._timeout_s)
            carries = frame.kind in (Kind.PUSH, Kind.EXCHANGE)
            if frame.status != Status.OK or (frame.kind != Kind.CALL and carries != (frame.payload >= 0)):
                raise ProtocolViolation(f"a {frame.kind.name} of status {frame.status.name} with {frame.payload} bytes")
            match frame.kind:
                case Kind.PING:
                    self._reply(link, frame)
                case Kind.PULL:
                    self._pull(link)
                case Kind.PUSH:
                    self._push(rank, link, frame)
                case Kind.EXCHANGE:
                    self._exchanges.wait_for_room(rank, frame.sequence)
                    self._exchanges.arrived(rank, frame.sequence, self._vector(link, frame))
                case Kind.CALL:
                    self._call(rank, link, frame)

    def _vector(self, link: FrameSocket, frame: Frame) -> Tensor:
        return link.receive_vector(frame, self._pool, self._timeout_s)

    def _reply(self, link: FrameSocket, frame: Frame, content: Tensor | bytes | None = None) -> None:
        self._sent(link.send(frame, content, self._timeout_s))

    def _pull(self, link: FrameSocket) -> None:
        latest = self.published.latest(self._first_s)
        if latest is None:
            self._reply(link, Frame(Kind.PULL, Status.NOTHING))
        else:
            vector, steps = latest
            self._reply(link, Frame(Kind.PULL, steps=steps, sequence=self.steps), vector)

    def _push(self, rank: int, link: FrameSocket, frame: Frame) -> None:
        if not self.inbox.reserve():
            link.skip(frame.payload, self._timeout_s)
            self._reply(link, Frame(Kind.PUSH, Status.BUSY))
            return
        try:
            vector = self._vector(link, frame)
        except BaseException:
            self.inbox.cancel()
            raise
        self.inbox.put(vector, rank, frame.steps)
        self._reply(link, Frame(Kind.PUSH))

    def _call(self, rank: int, link: FrameSocket, frame: Frame) -> None:
        part = None if frame.payload < 0 else self._vector(link, frame)
        try:
            with self._operating:
                if self.operation is None:
                    raise RuntimeError(f"worker {self._rank} serves no operations")
                answer, staleness = self.operation(rank, frame.name, part, frame.scalars)
            if answer is not None:
                self._settings.check_vector(answer)
        except Exception as error:  # any error is the caller's: this thread must go on to the next call
            text = f"{frame.name}: {type(error).__name__}: {error}"
            self._log(f"a call of worker {rank} failed: {text}")
            self._reply(link, Frame(Kind.CALL, Status.FAILED), text.encode()[:MAX_TEXT_BYTES])
        else:
            self._reply(link, Frame(Kind.CALL, steps=staleness), answer)
