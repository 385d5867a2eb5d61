"""Send requests to one peer, over a connection that is made when it is first needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from dsgd.engines.dist.io_thread import IoTask, Signal, loop
from dsgd.engines.dist.pairwise.attach import attach
from dsgd.engines.dist.pairwise.frame_socket import FrameSocket, LocalNode, PeerSilent, handshake, unconnected
from dsgd.engines.dist.pairwise.wire import Frame, Kind, ProtocolViolation, Status

CLOSED = "the plane was closed here"
GIVEN_UP_SOON = (Kind.PULL, Kind.PUSH, Kind.ASK)  # at once if the peer is away
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

    done: takes the answer's frame and its vector, or its text if the status is FAILED; for an EXCHANGE, the written
    request's frame and None. patience_s: maximum time without a moved byte."""

    frame: Frame
    vector: Tensor | None
    patience_s: float
    done: Callable[[Frame, Tensor | str | None], None] = lambda frame, content: None
    failed: Callable[[Unreachable], None] = lambda error: None


class Channel:
    """Send requests to one peer, in order. All but `refusal` is for the thread of the plane's loop.

    After a failure the peer counts as away: pulls, pushes and asks fail at once, while a ping is sent every patience_s
    until the peer answers. Exchanges and calls have more patience and try to connect themselves."""

    def __init__(self, rank: int, node: LocalNode) -> None:
        """rank: rank of the peer."""
        self._rank = rank
        self._node = node
        self._probe = PeerRequest(Frame(Kind.PING), None, node.patience_s)
        self._changed = Signal()
        self._address: tuple[str, int] | None = None
        self._moves = 0  # changes of the address
        self._link: FrameSocket | None = None
        self._linked = 0  # the number of moves when the link was made
        self._away: str | None = None  # why the peer cannot be reached
        self._queue: deque[PeerRequest] = deque()
        self._current: PeerRequest | None = None
        self._closing = False
        self.task: IoTask | None = None

    def relocate(self, address: tuple[str, int] | None) -> None:
        """Set the peer's address. The present request at the old address fails."""
        self._address = address
        self._moves += 1
        self._away = None
        if self._link is not None:
            self._link.shutdown()
        self._changed.set()

    def submit(self, request: PeerRequest) -> None:
        """Queue a request, or fail it at once."""
        if (reason := self.refusal(request.frame.kind)) is not None:
            return request.failed(Unreachable(self._rank, reason))
        self._queue.append(request)
        self._changed.set()
        if self.task is None:
            self.task = loop().start(self._work())

    def refusal(self, kind: Kind) -> str | None:
        """Return why a request of this kind would fail at once. Any thread may ask."""
        if self._closing:
            return CLOSED
        if self._address is None:
            return "its address is not known"
        return self._away if kind in GIVEN_UP_SOON else None

    async def _work(self) -> None:
        wait_s = None  # until the next probe
        while True:
            if not self._queue and not self._closing:
                await self._changed.wait(wait_s)
            if self._closing and not self._queue:
                break
            request = self._queue.popleft() if self._queue else self._probe
            if request is self._probe and self._away is None:
                wait_s = None  # the peer was relocated, or no request waits
                continue
            if request.frame.kind in GIVEN_UP_SOON and self._away is not None:
                request.failed(Unreachable(self._rank, self._away))
                continue
            self._current, moves, was_away = request, self._moves, self._away is not None
            reason = answer = content = None
            try:
                answer, content = await self._ask(request)
            except (OSError, PeerSilent, ProtocolViolation) as error:
                reason = self._give_up(error)
            if moves == self._moves:  # before the callbacks: a request that they make must see the new state
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

    async def _ask(self, request: PeerRequest) -> tuple[Frame, Tensor | str | None]:
        """Send a request and receive its answer."""
        asked = request.frame
        link = await self._connected(request.patience_s)
        self._node.sent(await link.send(asked, request.vector, request.patience_s))
        if asked.kind == Kind.EXCHANGE:
            return asked, None
        frame = await link.receive(self._node.settings, request.patience_s)
        if frame.kind != asked.kind or (frame.payload >= 0) not in ALLOWED_ANSWERS.get((frame.kind, frame.status), ()):
            raise ProtocolViolation(
                f"{frame.kind.name} {frame.status.name} of {frame.payload} bytes to {asked.kind.name}"
            )
        if frame.status == Status.FAILED:
            return frame, (await link.read(frame.payload, request.patience_s)).decode(errors="replace")
        return frame, None if frame.payload < 0 else await link.receive_vector(frame, self._node, request.patience_s)

    def _give_up(self, error: Exception) -> str:
        """Close the failed connection, and return the reason as text."""
        self._drop()
        if isinstance(error, ProtocolViolation):
            self._node.log(f"disconnected from worker {self._rank}, which sent {error}")
        return CLOSED if self._closing else (getattr(error, "strerror", None) or str(error)).lower()

    async def _connected(self, patience_s: float) -> FrameSocket:
        """Return the connection to the peer at its address, a new one if need be."""
        if self._link is not None and self._linked == self._moves:
            return self._link
        self._drop()
        assert self._address is not None
        link, where = unconnected(self._address, self._node.slice_s)
        self._link, self._linked = link, self._moves  # before it connects: `close` must be able to end that
        await link.connect(where, patience_s)
        await handshake(link, self._node.settings.encode_hello(self._node.rank, self._rank), patience_s)
        if self._node.attaches and link.is_within_host:
            await attach(link, self._node.settings, patience_s)
        return link

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def close(self, abort: bool) -> None:
        """Fail all requests and end the task. Without `abort`, the vectors of exchanges are written first."""
        self._closing = True
        kept = deque(request for request in self._queue if request.frame.kind == Kind.EXCHANGE and not abort)
        dropped = [request for request in self._queue if request not in kept]
        self._queue = kept
        current = self._current
        if self._link is not None and (abort or (current is not None and current.frame.kind != Kind.EXCHANGE)):
            self._link.shutdown()
        self._changed.set()
        for request in dropped:
            request.failed(Unreachable(self._rank, CLOSED))
