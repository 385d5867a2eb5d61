"""The answering side: one thread that accepts and checks connections, and one for every connection it has let in.

Strangers cost next to nothing: what has not said a valid hello is looked after by the accepting thread alone, at most
MAX_STRANGERS of them and for HELLO_S each, and every kind of offence is reported once.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dsgd.processes.pairwise.wire import HELLO, Greeting, Link, Run, Silent, Violation

MAX_STRANGERS = 64
HELLO_S = 5.0
BACKLOG = 128


@dataclass(slots=True, eq=False)
class Stranger:
    """A connection that has not said who it is."""

    deadline: float
    hello: bytearray = field(default_factory=bytearray)


class Server:
    """Listens on one address and runs `serve(rank, link)` in a thread of its own for every node that has connected.

    A second connection of a rank takes the first one's place, and is served when that has ended.
    """

    def __init__(self, rank: int, run: Run, address: str, slice_s: float, serve: Callable[[int, Link], None],
                 changed: Callable[[int, bool], None], log: Callable[[str], None]) -> None:  # fmt: skip
        """changed: told (rank, True) when a node has connected and (rank, False) when its last connection has ended."""
        self._rank = rank
        self._run = run
        self._slice_s = slice_s
        self._serve = serve
        self._changed = changed
        self._log = log
        self._reported: set[str] = set()
        self._strangers: dict[socket.socket, Stranger] = {}  # the oldest first
        self._links: dict[int, Link] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._lock = threading.Lock()  # guards _links, _threads, _reported, _closing
        self._closing = False
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listening = socket.create_server((address, 0), family=family, backlog=BACKLOG, reuse_port=False)
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self._waker, self._woken = socket.socketpair()
        self._accepting = threading.Thread(target=self._accept, name="dsgd accept", daemon=True)
        self._accepting.start()

    def received(self, rank: int) -> int:
        """Bytes that have come over the present connection of a rank; only comparisons make sense."""
        link = self._links.get(rank)
        return 0 if link is None else link.received

    def report(self, kind: str, text: str) -> None:
        """Log the first offence of a kind."""
        with self._lock:
            new = kind not in self._reported
            self._reported.add(kind)
        if new:
            self._log(f"{text} (reported once)")

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listening, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._closing:
                oldest = next(iter(self._strangers.values()), None)
                wait_s = None if oldest is None else max(0.0, oldest.deadline - time.monotonic())
                ready = {key.fileobj for key, _ in selector.select(wait_s)}
                for sock in [sock for sock in self._strangers if sock in ready]:  # before new ones push them out
                    self._listen_to(sock, selector)
                if self._listening in ready:
                    self._welcome(selector)
                while self._strangers:
                    sock, stranger = next(iter(self._strangers.items()))
                    if stranger.deadline > time.monotonic() and len(self._strangers) <= MAX_STRANGERS:
                        break
                    self._dismiss(sock, selector)
            for sock in self._strangers:
                sock.close()

    def _welcome(self, selector: selectors.BaseSelector) -> None:
        """Accept one connection: one at a time, so that those who have spoken are heard before the oldest must go."""
        try:
            sock, _ = self._listening.accept()
        except BlockingIOError:
            return  # it has gone already
        except OSError as error:
            self.report("accept", f"cannot accept connections: {error.strerror}")
            time.sleep(0.1)  # no file is left: there is nothing to do but to wait
            return
        sock.setblocking(False)
        self._strangers[sock] = Stranger(time.monotonic() + HELLO_S)
        selector.register(sock, selectors.EVENT_READ)

    def _dismiss(self, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        self.report("no hello", "a connection was dropped that said no complete hello")
        self._forget(sock, selector)
        sock.close()

    def _forget(self, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        selector.unregister(sock)
        del self._strangers[sock]

    def _listen_to(self, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        """Read what a stranger says; let it in, or turn it away, when it has said enough."""
        hello = self._strangers[sock].hello
        try:
            data = sock.recv(HELLO.size - len(hello))
        except OSError:
            data = b""
        hello += data
        if not data:
            return self._dismiss(sock, selector)
        if len(hello) < HELLO.size:
            return
        self._forget(sock, selector)
        greeting, rank = self._run.greet(bytes(hello), self._rank)
        if greeting is None:
            self.report("garbage", "a connection was dropped that began with garbage")
            return sock.close()
        with contextlib.suppress(OSError):  # it may have gone, which is looked at below
            sock.send(bytes([greeting]))
        if greeting != Greeting.WELCOME:
            self.report(greeting.name, f"a connection was refused: {greeting.name.lower().replace('_', ' ')}")
            return sock.close()
        if _ended(sock):
            return sock.close()
        self._let_in(rank, Link(sock, self._slice_s))

    def _let_in(self, rank: int, link: Link) -> None:
        with self._lock:
            before, former = self._threads.get(rank), self._links.get(rank)
            thread = threading.Thread(
                target=self._thread, args=(rank, link, before), name=f"dsgd serving {rank}", daemon=True
            )
            self._links[rank] = link
            self._threads[rank] = thread
            self._changed(rank, True)
        if former is not None:
            former.end()
        thread.start()

    def _thread(self, rank: int, link: Link, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # what came over the former connection comes first
        try:
            self._serve(rank, link)
        except Silent:
            self.report(f"silent {rank}", f"worker {rank} was disconnected: it fell silent in the middle of a message")
        except Violation as error:
            self.report(f"violation {rank}", f"worker {rank} was disconnected: it sent {error}")
        except OSError:
            pass  # it has ended, which is its right between two messages; whoever waits for it is told below
        finally:
            with self._lock:
                if self._links.get(rank) is link:
                    del self._links[rank]
                    self._changed(rank, False)
            link.close()

    def close(self, patience_s: float) -> None:
        """End every connection and thread."""
        with self._lock:
            self._closing = True
        with contextlib.suppress(OSError):
            self._waker.send(b"x")
        self._accepting.join(patience_s)
        with self._lock:
            links, threads = list(self._links.values()), list(self._threads.values())
        for link in links:
            link.end()
        deadline = time.monotonic() + patience_s
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        for sock in (self._listening, self._waker, self._woken):
            sock.close()


def _ended(sock: socket.socket) -> bool:
    """Has the peer closed? While we were stopped it may have come and gone, and must not replace its own next try."""
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
