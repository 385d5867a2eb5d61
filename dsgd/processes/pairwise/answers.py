"""What a node answers its peers: the frames that come over one connection, in the thread of that connection."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torch import Tensor

from dsgd.processes.pairwise.exchanges import Exchanges
from dsgd.processes.pairwise.published import Buffers, Published
from dsgd.processes.pairwise.wire import MAX_TEXT_BYTES, Frame, Kind, Link, Run, Status, Violation, octets

Operation = Callable[[int, str, Tensor | None, tuple[float, ...]], tuple[Tensor | None, int]]


class Inbox:
    """Vectors that were pushed to this node, in order of arrival, at most `capacity` of them."""

    def __init__(self, capacity: int) -> None:
        self._vectors: list[tuple[Tensor, int, int]] = []
        self._places = capacity  # that are neither taken nor promised to a vector on its way
        self._lock = threading.Lock()

    def reserve(self) -> bool:
        """Promise a place to a vector; False when there is none."""
        with self._lock:
            free = self._places > 0
            self._places -= free
            return free

    def cancel(self) -> None:
        with self._lock:
            self._places += 1

    def put(self, vector: Tensor, sender: int, steps: int) -> None:
        """Fill a reserved place."""
        with self._lock:
            self._vectors.append((vector, sender, steps))

    def take(self) -> list[tuple[Tensor, int, int]]:
        with self._lock:
            taken, self._vectors = self._vectors, []
            self._places += len(taken)
            return taken


class Answers:
    """Everything that others may ask of this node. Patience with a peer in the middle of a message is timeout_s, the
    longer one: a slow reader costs one thread and one snapshot, and nobody else waits for it."""

    def __init__(self, rank: int, run: Run, buffers: Buffers, exchanges: Exchanges, timeout_s: float,
                 patience_s: float, sent: Callable[[int], None], log: Callable[[str], None]) -> None:  # fmt: skip
        """sent: told the bytes of every vector that has been written."""
        self._rank = rank
        self._run = run
        self._buffers = buffers
        self._exchanges = exchanges
        self._timeout_s = timeout_s
        self._first_s = patience_s / 2  # who pulls before anything is published must hear of it before he gives up
        self._sent = sent
        self._log = log
        self._operating = threading.Lock()
        self.operation: Operation | None = None
        self.published = Published(run.dtype, readers=run.nodes)
        self.inbox = Inbox(max(4, 2 * (run.nodes - 1)))
        self.steps = 0

    def serve(self, rank: int, link: Link) -> None:
        """Answer a node until its connection ends. Raises what ended it: OSError, Silent, Violation."""
        while True:
            link.wait()
            frame = link.receive(self._run, self._timeout_s)
            carries = frame.kind in (Kind.PUSH, Kind.EXCHANGE)
            if frame.status != Status.OK or (frame.kind != Kind.CALL and carries != (frame.payload >= 0)):
                raise Violation(f"a {frame.kind.name} of status {frame.status.name} with {frame.payload} bytes")
            match frame.kind:
                case Kind.PING:
                    link.send(frame, None, self._timeout_s)
                case Kind.PULL:
                    self._pull(link)
                case Kind.PUSH:
                    self._push(rank, link, frame)
                case Kind.EXCHANGE:
                    self._exchanges.room(rank, frame.second)
                    self._exchanges.arrived(rank, frame.second, self._vector(link, frame))
                case Kind.CALL:
                    self._call(rank, link, frame)

    def _vector(self, link: Link, frame: Frame) -> Tensor:
        vector = self._buffers.take(frame.payload // self._run.dtype.itemsize)
        link.read_into(octets(vector), self._timeout_s)
        return vector

    def _reply(self, link: Link, frame: Frame, vector: Tensor | None) -> None:
        link.send(frame, vector, self._timeout_s)
        if vector is not None:
            self._sent(len(octets(vector)))

    def _pull(self, link: Link) -> None:
        snapshot = self.published.latest(self._first_s)
        if snapshot is None:
            self._reply(link, Frame(Kind.PULL, Status.NOTHING), None)
        else:
            self._reply(link, Frame(Kind.PULL, steps=snapshot.steps, second=self.steps), snapshot.vector)

    def _push(self, rank: int, link: Link, frame: Frame) -> None:
        if not self.inbox.reserve():
            link.skip(frame.payload, self._timeout_s)
            self._reply(link, Frame(Kind.PUSH, Status.BUSY), None)
            return
        try:
            vector = self._vector(link, frame)
        except BaseException:
            self.inbox.cancel()
            raise
        self.inbox.put(vector, rank, frame.steps)
        self._reply(link, Frame(Kind.PUSH), None)

    def _call(self, rank: int, link: Link, frame: Frame) -> None:
        part = None if frame.payload < 0 else self._vector(link, frame)
        try:
            with self._operating:
                if self.operation is None:
                    raise RuntimeError(f"worker {self._rank} serves no operations")
                answer, staleness = self.operation(rank, frame.name, part, frame.scalars)
            if answer is not None:
                self._run.check(answer)
        except Exception as error:  # whatever it is, it is the caller's: the next call must find this thread alive
            text = f"{frame.name}: {type(error).__name__}: {error}"
            self._log(f"a call of worker {rank} failed: {text}")
            link.send(Frame(Kind.CALL, Status.FAILED), text.encode()[:MAX_TEXT_BYTES], self._timeout_s)
        else:
            self._reply(link, Frame(Kind.CALL, steps=staleness), answer)
