"""Accept the connections of other nodes, and answer their requests or pass them on to a ring.

All of it is done in the thread of the plane's loop, except asks, which take time: a separate thread answers them one
after the other.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from torch import Tensor

from dsgd.engines.dist.admission import Admission, OffenceLog
from dsgd.engines.dist.io_thread import IoTask, Sleep, called, loop, settled, tasks_ended
from dsgd.engines.dist.pairwise.attach import answer_attach
from dsgd.engines.dist.pairwise.exchanges import Exchanges
from dsgd.engines.dist.pairwise.frame_socket import FrameSocket, LocalNode, PeerSilent, VectorPool
from dsgd.engines.dist.pairwise.ring import RingEntrance
from dsgd.engines.dist.pairwise.wire import (
    HELLO,
    MAX_TEXT_BYTES,
    REQUESTS,
    Frame,
    HelloReply,
    Kind,
    ProtocolViolation,
    Status,
)

Answered = tuple[Tensor | None, int]  # result of an operation: a vector or None, and the staleness
PeerOperation = Callable[[int, str, Tensor | None, tuple[float, ...]], Answered]
Answer = Callable[[Tensor, float], tuple[Tensor, int] | None]
BACKLOG = 128
T = TypeVar("T")


class Responder:
    """Answer the requests of peers: give out the published vector, fill the inbox, run operations, pass on questions.

    A peer may be silent in the middle of a message for timeout_s, the longer limit: a slow reader costs one published
    vector, and no other peer waits for it. steps: number of this node's steps so far."""

    def __init__(self, node: LocalNode, exchanges: Exchanges) -> None:
        nodes = node.settings.nodes
        self._node = node
        self._exchanges = exchanges
        self._published: tuple[Tensor, int] | None = None
        self._early: list[Sleep] = []  # pulls that wait for a first vector
        self._copies = VectorPool(node.settings.dtype, nodes + 2)  # the latest, the next, one for every slow reader
        self._inbox: deque[tuple[Tensor, int, int]] = deque()
        self._inbox_free = threading.Semaphore(max(4, 2 * (nodes - 1)))  # less the vectors that are arriving
        self._answering = ThreadPoolExecutor(1, "dsgd answers")  # starts no thread before its first task
        self._at_work = False
        self.operation: PeerOperation | None = None
        self.answer: Answer | None = None
        self.steps = 0

    def publish(self, x: Tensor, steps: int) -> bool:
        """Let peers pull a copy of x [d], in memory that no reader uses. Never waits. Any thread may call. Returns
        whether it is the first publication, for which pulls may be waiting."""
        is_first = self._published is None
        vector = self._copies.take(len(x))
        vector.copy_(x.detach())
        self._published = vector, steps
        return is_first

    def take_inbox(self) -> list[tuple[Tensor, int, int]]:
        """Remove and return the pushed vectors, with their senders and the senders' steps, in order of arrival."""
        taken = [self._inbox.popleft() for _ in range(len(self._inbox))]
        if taken:
            self._inbox_free.release(len(taken))
        return taken

    def answer_early_pulls(self) -> None:
        """Answer the pulls that wait for a first vector."""
        for sleep in self._early:
            sleep.settle(True)

    def close(self) -> None:
        """End the thread of the answers, unless it is at work: that may take any time."""
        self._answering.shutdown(wait=not self._at_work, cancel_futures=True)

    async def serve(self, rank: int, link: FrameSocket) -> None:
        """Answer a node until its connection ends. Raises the cause: OSError, PeerSilent, ProtocolViolation."""
        while True:
            await link.wait_readable()
            frame = await link.receive(self._node.settings, self._node.timeout_s)
            carries = frame.kind in (Kind.PUSH, Kind.EXCHANGE, Kind.ASK)
            if frame.status != Status.OK or (frame.kind != Kind.CALL and carries != (frame.payload >= 0)):
                raise ProtocolViolation(f"a {frame.kind.name} of status {frame.status.name} with {frame.payload} bytes")
            match frame.kind:
                case Kind.PING:
                    await self._reply(link, frame)
                case Kind.PULL:
                    await self._pull(link)
                case Kind.PUSH:
                    await self._push(rank, link, frame)
                case Kind.EXCHANGE:
                    await self._exchanges.wait_for_room(rank, frame.sequence)
                    self._exchanges.arrived(rank, frame.sequence, await self._vector(link, frame))
                case Kind.ASK:
                    await self._ask(link, frame)
                case Kind.CALL:
                    await self._call(rank, link, frame)
                case Kind.ATTACH:
                    await answer_attach(link, frame, self._node)

    async def _vector(self, link: FrameSocket, frame: Frame) -> Tensor:
        return await link.receive_vector(frame, self._node, self._node.timeout_s)

    async def _reply(self, link: FrameSocket, frame: Frame, content: Tensor | bytes | None = None) -> None:
        self._node.sent(await link.send(frame, content, self._node.timeout_s))

    async def _pull(self, link: FrameSocket) -> None:
        if self._published is None:
            self._early.append(sleep := Sleep())
            await settled(sleep, self._node.patience_s / 2)  # before the peer gives up
        published = self._published
        if published is None:
            await self._reply(link, Frame(Kind.PULL, Status.NOTHING))
        else:
            vector, steps = published
            await self._reply(link, Frame(Kind.PULL, steps=steps, sequence=self.steps), vector)

    async def _push(self, rank: int, link: FrameSocket, frame: Frame) -> None:
        if not self._inbox_free.acquire(blocking=False):
            await link.skip(frame.payload, self._node.timeout_s)
            await self._reply(link, Frame(Kind.PUSH, Status.BUSY))
            return
        try:
            vector = await self._vector(link, frame)
        except BaseException:
            self._inbox_free.release()
            raise
        self._inbox.append((vector, rank, frame.steps))
        await self._reply(link, Frame(Kind.PUSH))

    async def _ask(self, link: FrameSocket, frame: Frame) -> None:
        vector = await self._vector(link, frame)
        if link.has_ended():  # this process was stopped, and the peer has given up: it must not get half an answer
            raise ConnectionResetError("connection closed")
        asked, limit_s = time.monotonic(), self._node.patience_s / 2

        def answer() -> tuple[Tensor, int] | None:
            waits_no_more = time.monotonic() - asked > limit_s  # it has waited for the answers to others
            return None if self.answer is None or waits_no_more else self.answer(vector, limit_s)

        answered = await self._aside(answer)
        if answered is None:
            await self._reply(link, Frame(Kind.ASK, Status.NOTHING))
        else:
            made, steps = answered
            self._node.settings.check_vector(made)
            await self._reply(link, Frame(Kind.ASK, steps=steps, sequence=self.steps), made)

    async def _call(self, rank: int, link: FrameSocket, frame: Frame) -> None:
        part = None if frame.payload < 0 else await self._vector(link, frame)
        try:
            if self.operation is None:
                raise RuntimeError(f"worker {self._node.rank} serves no operations")
            answer, staleness = await self._aside(partial(self.operation, rank, frame.name, part, frame.scalars))
            if answer is not None:
                self._node.settings.check_vector(answer)
        except Exception as error:  # any error is the caller's: the next call must be answered
            text = f"{frame.name}: {type(error).__name__}: {error}"
            self._node.log(f"a call of worker {rank} failed: {text}")
            await self._reply(link, Frame(Kind.CALL, Status.FAILED), text.encode()[:MAX_TEXT_BYTES])
        else:
            await self._reply(link, Frame(Kind.CALL, steps=staleness), answer)

    async def _aside(self, function: Callable[[], T]) -> T:
        """Call a function in the thread of the answers."""

        def call() -> T:
            self._at_work = True
            try:
                return function()
            finally:
                self._at_work = False

        return await called(self._answering, call)


class PeerListener:
    """Listen on one address and let the responder serve every node that has connected, each in a task of its own.

    A second connection of a rank replaces the first one, and is served when that has ended. Connections for a ring wait
    at its entrance instead."""

    def __init__(
        self, node: LocalNode, address: str, responder: Responder, exchanges: Exchanges, entrance: RingEntrance
    ) -> None:
        self._node = node
        self._responder = responder
        self._exchanges = exchanges
        self._entrance = entrance
        self._offences = OffenceLog(node.log)
        self._links: dict[int, FrameSocket] = {}
        self._tasks: dict[int, IoTask] = {}
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listening = socket.create_server((address, 0), family=family, backlog=BACKLOG, reuse_port=False)
        self.port: int = self._listening.getsockname()[1]

    def start(self) -> None:
        """Begin to let nodes in, in the running loop."""
        self._strangers = selectors.EpollSelector()
        self._admission = Admission(
            self._listening, self._strangers, HELLO.size, lambda offence, host: self._report(offence, offence)
        )
        self._looks = Sleep()
        loop().watch(self._strangers.fileno(), lambda: self._looks.settle(True), select.EPOLLIN)
        self._admitting = loop().start(self._admit())

    def received(self, rank: int) -> int:
        """Return the bytes received over the present connection of a rank, for comparisons."""
        link = self._links.get(rank)
        return 0 if link is None else link.received

    def _report(self, kind: str, text: str) -> None:
        self._offences.report(kind, f"{text} (reported once)")

    async def _admit(self) -> None:
        while True:
            for sock, _, hello in self._admission.process({key.fileobj for key, _ in self._strangers.select(0)}):
                self._answer(sock, hello)
            self._looks = Sleep()
            await settled(self._looks, self._admission.wait_s())

    def _answer(self, sock: socket.socket, hello: bytes) -> None:
        """Let a connection in, or turn it away."""
        reply, rank, purpose = self._node.settings.check_hello(hello, self._node.rank)
        if reply == HelloReply.WELCOME and purpose != REQUESTS and not self._entrance.has_place(purpose):
            reply = HelloReply.NO_PLACE
        if reply is None:
            self._report("garbage", "a connection was dropped that began with garbage")
            return sock.close()
        with contextlib.suppress(OSError):  # it may have gone, which is looked at below
            sock.send(bytes([reply]))
        if reply != HelloReply.WELCOME:
            self._report(reply.name, f"a connection was refused: {reply.name.lower().replace('_', ' ')}")
            return sock.close()
        link = FrameSocket(sock, self._node.slice_s)
        if link.has_ended():  # while this process was stopped: the peer may have connected, ended and connected again
            return link.close()
        if purpose != REQUESTS:
            return self._entrance.enter(purpose, link.detach())
        self._let_in(rank, link)

    def _let_in(self, rank: int, link: FrameSocket) -> None:
        old_link = self._links.get(rank)
        self._links[rank] = link
        self._tasks[rank] = loop().start(self._work(rank, link, self._tasks.get(rank)))
        self._exchanges.set_connected(rank, True)
        if old_link is not None:
            old_link.shutdown()

    async def _work(self, rank: int, link: FrameSocket, old: IoTask | None) -> None:
        try:
            if old is not None:
                await tasks_ended([old])  # frames of the old connection are served first
            await self._responder.serve(rank, link)
        except PeerSilent:
            self._report(f"silent {rank}", f"worker {rank} was disconnected: it fell silent in the middle of a message")
        except ProtocolViolation as error:
            self._report(f"violation {rank}", f"worker {rank} was disconnected: it sent {error}")
        except OSError:
            pass  # a peer may end its connection between two messages; `set_connected` informs its waiters
        finally:
            if self._links.get(rank) is link:
                del self._links[rank], self._tasks[rank]
                self._exchanges.set_connected(rank, False)
            link.close()

    async def close(self, patience_s: float) -> None:
        """End every connection. Reads and writes that continue after patience_s are cancelled later."""
        loop().forget(self._strangers.fileno())
        self._admitting.end()
        self._admission.close()
        self._strangers.close()
        for link in self._links.values():
            link.shutdown()
        await tasks_ended(list(self._tasks.values()), patience_s)
