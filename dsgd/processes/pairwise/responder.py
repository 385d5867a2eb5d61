"""Answer the frames of one connection, in the thread of that connection."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from torch import Tensor

from dsgd.processes.pairwise.exchanges import Exchanges
from dsgd.processes.pairwise.frame_socket import FrameSocket, LocalNode
from dsgd.processes.pairwise.vector_pool import VectorPool
from dsgd.processes.pairwise.wire import MAX_TEXT_BYTES, Frame, Kind, ProtocolViolation, Status

Operation = Callable[[int, str, Tensor | None, tuple[float, ...]], tuple[Tensor | None, int]]


class Responder:
    """Answer the requests of peers: give out the published vector, fill the inbox, run operations.

    A peer may be silent in the middle of a message for timeout_s, the longer limit: a slow reader costs one thread and
    one published vector, and nobody else waits for it. steps: made by this node so far."""

    def __init__(self, node: LocalNode, exchanges: Exchanges) -> None:
        nodes = node.settings.nodes
        self._node = node
        self._exchanges = exchanges
        self._published: tuple[Tensor, int] | None = None
        self._first = threading.Event()  # something has been published
        self._copies = VectorPool(node.settings.dtype, nodes + 2)  # the latest, the next, one for every slow reader
        self._inbox: deque[tuple[Tensor, int, int]] = deque()
        self._inbox_free = threading.Semaphore(max(4, 2 * (nodes - 1)))  # less the vectors that are arriving
        self._operating = threading.Lock()
        self.operation: Operation | None = None
        self.steps = 0

    def publish(self, x: Tensor, steps: int) -> None:
        """Let peers pull a copy of x [d], in memory that no reader holds. Waits for nobody."""
        vector = self._copies.take(len(x))
        vector.copy_(x.detach())
        self._published = vector, steps
        self._first.set()

    def take_inbox(self) -> list[tuple[Tensor, int, int]]:
        """Remove and return the pushed vectors, with their senders and the senders' steps, in order of arrival."""
        taken = [self._inbox.popleft() for _ in range(len(self._inbox))]
        if taken:
            self._inbox_free.release(len(taken))
        return taken

    def close(self) -> None:
        """Answer the pulls that wait for a first vector."""
        self._first.set()

    def serve(self, rank: int, link: FrameSocket) -> None:
        """Answer a node until its connection ends. Raises the cause: OSError, PeerSilent, ProtocolViolation."""
        while True:
            link.wait_readable()
            frame = link.receive(self._node.settings, self._node.timeout_s)
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
        return link.receive_vector(frame, self._node.pool, self._node.timeout_s)

    def _reply(self, link: FrameSocket, frame: Frame, content: Tensor | bytes | None = None) -> None:
        self._node.sent(link.send(frame, content, self._node.timeout_s))

    def _pull(self, link: FrameSocket) -> None:
        self._first.wait(self._node.patience_s / 2)  # answered before the peer gives up
        published = self._published
        if published is None:
            self._reply(link, Frame(Kind.PULL, Status.NOTHING))
        else:
            vector, steps = published
            self._reply(link, Frame(Kind.PULL, steps=steps, sequence=self.steps), vector)

    def _push(self, rank: int, link: FrameSocket, frame: Frame) -> None:
        if not self._inbox_free.acquire(blocking=False):
            link.skip(frame.payload, self._node.timeout_s)
            self._reply(link, Frame(Kind.PUSH, Status.BUSY))
            return
        try:
            vector = self._vector(link, frame)
        except BaseException:
            self._inbox_free.release()
            raise
        self._inbox.append((vector, rank, frame.steps))
        self._reply(link, Frame(Kind.PUSH))

    def _call(self, rank: int, link: FrameSocket, frame: Frame) -> None:
        part = None if frame.payload < 0 else self._vector(link, frame)
        try:
            with self._operating:
                if self.operation is None:
                    raise RuntimeError(f"worker {self._node.rank} serves no operations")
                answer, staleness = self.operation(rank, frame.name, part, frame.scalars)
            if answer is not None:
                self._node.settings.check_vector(answer)
        except Exception as error:  # any error is the caller's: this thread must go on to the next call
            text = f"{frame.name}: {type(error).__name__}: {error}"
            self._node.log(f"a call of worker {rank} failed: {text}")
            self._reply(link, Frame(Kind.CALL, Status.FAILED), text.encode()[:MAX_TEXT_BYTES])
        else:
            self._reply(link, Frame(Kind.CALL, steps=staleness), answer)
