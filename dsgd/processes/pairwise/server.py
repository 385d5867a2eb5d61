"""Accept the connections of other nodes, and answer their requests or pass them on to a ring.

One thread serves all strangers, and one every node that is let in with requests.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from torch import Tensor

from dsgd.processes.admission import Admission, OffenceLog
from dsgd.processes.pairwise.attach import answer_attach
from dsgd.processes.pairwise.channel import join_thread
from dsgd.processes.pairwise.exchanges import Exchanges
from dsgd.processes.pairwise.frame_socket import FrameSocket, LocalNode, PeerSilent, VectorPool
from dsgd.processes.pairwise.ring import RingEntrance
from dsgd.processes.pairwise.wire import (
    HELLO,
    MAX_TEXT_BYTES,
    REQUESTS,
    Frame,
    HelloReply,
    Kind,
    ProtocolViolation,
    Status,
)

PeerOperation = Callable[[int, str, Tensor | None, tuple[float, ...]], tuple[Tensor | None, int]]
Answer = Callable[[Tensor, float], tuple[Tensor, int] | None]
BACKLOG = 128


class Responder:
    """Answer the requests of peers: give out the published vector, fill the inbox, run operations, pass on questions.

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
        self.operation: PeerOperation | None = None
        self.answer: Answer | None = None
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
            carries = frame.kind in (Kind.PUSH, Kind.EXCHANGE, Kind.ASK)
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
                case Kind.ASK:
                    self._ask(link, frame)
                case Kind.CALL:
                    self._call(rank, link, frame)
                case Kind.ATTACH:
                    answer_attach(link, frame, self._node)

    def _vector(self, link: FrameSocket, frame: Frame) -> Tensor:
        return link.receive_vector(frame, self._node, self._node.timeout_s)

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

    def _ask(self, link: FrameSocket, frame: Frame) -> None:
        vector = self._vector(link, frame)
        if link.has_ended():  # this process stood still, and the peer has given up: it must not be answered by half
            raise ConnectionResetError("connection closed")
        answered = None if self.answer is None else self.answer(vector, self._node.patience_s / 2)
        if answered is None:
            self._reply(link, Frame(Kind.ASK, Status.NOTHING))
        else:
            answer, steps = answered
            self._node.settings.check_vector(answer)
            self._reply(link, Frame(Kind.ASK, steps=steps, sequence=self.steps), answer)

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


class PeerListener:
    """Listen on one address and let the responder serve, in a thread of its own for every node that has connected.

    A second connection of a rank replaces the first one, and is served when that has ended. Those for a ring wait at
    its entrance instead.
    """

    def __init__(
        self, node: LocalNode, address: str, responder: Responder, exchanges: Exchanges, entrance: RingEntrance
    ) -> None:
        self._node = node
        self._responder = responder
        self._exchanges = exchanges
        self._entrance = entrance
        self._offences = OffenceLog(node.log)
        self._links: dict[int, FrameSocket] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._lock = threading.Lock()  # guards _links, _threads
        self._closing = False
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listening = socket.create_server((address, 0), family=family, backlog=BACKLOG, reuse_port=False)
        self.port: int = self._listening.getsockname()[1]
        self._waker, self._woken = socket.socketpair()
        self._accepting = threading.Thread(target=self._accept, name="dsgd accept", daemon=True)
        self._accepting.start()

    def received(self, rank: int) -> int:
        """Return the bytes that came over the present connection of a rank; only comparisons make sense."""
        link = self._links.get(rank)
        return 0 if link is None else link.received

    def _report(self, kind: str, text: str) -> None:
        self._offences.report(kind, f"{text} (reported once)")

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            admission = Admission(
                self._listening, selector, HELLO.size, lambda offence, host: self._report(offence, offence)
            )
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._closing:
                ready = {key.fileobj for key, _ in selector.select(admission.wait_s())}
                for sock, _, hello in admission.process(ready):
                    self._answer(sock, hello)
            admission.close()

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
        if _ended(sock):
            return sock.close()
        if purpose != REQUESTS:
            return self._entrance.enter(purpose, sock)
        self._let_in(rank, FrameSocket(sock, self._node.slice_s))

    def _let_in(self, rank: int, link: FrameSocket) -> None:
        with self._lock:
            old_thread, old_link = self._threads.get(rank), self._links.get(rank)
            thread = threading.Thread(
                target=self._work, args=(rank, link, old_thread), name=f"dsgd serving {rank}", daemon=True
            )
            self._links[rank] = link
            self._threads[rank] = thread
            self._exchanges.set_connected(rank, True)
        if old_link is not None:
            old_link.shutdown()
        thread.start()

    def _work(self, rank: int, link: FrameSocket, old_thread: threading.Thread | None) -> None:
        if old_thread is not None:
            old_thread.join()  # frames of the old connection come first
        try:
            self._responder.serve(rank, link)
        except PeerSilent:
            self._report(f"silent {rank}", f"worker {rank} was disconnected: it fell silent in the middle of a message")
        except ProtocolViolation as error:
            self._report(f"violation {rank}", f"worker {rank} was disconnected: it sent {error}")
        except OSError:
            pass  # a peer may end its connection between two messages; `set_connected` tells who waits for it
        finally:
            with self._lock:
                if self._links.get(rank) is link:
                    del self._links[rank]
                    self._exchanges.set_connected(rank, False)
            link.close()

    def close(self, patience_s: float) -> None:
        """End every connection and thread."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._waker.send(b"x")
        self._accepting.join(patience_s)
        with self._lock:
            links, threads = list(self._links.values()), list(self._threads.values())
        for link in links:
            link.shutdown()
        deadline = time.monotonic() + patience_s
        for thread in threads:
            join_thread(thread, max(0.0, deadline - time.monotonic()))
        for sock in (self._listening, self._waker, self._woken):
            sock.close()


def _ended(sock: socket.socket) -> bool:
    """Check whether the peer has closed the connection. While this process was stopped the peer may have come, gone
    and come again, and the old connection must not replace the new one."""
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
