"""Admit connections that open with the run's token, and bound the cost of all others.

A connection is a stranger until it has sent its greeting, a fixed number of bytes with the token among them. At most
MAX_STRANGERS are kept, for at most STRANGER_S each of this process's listening time; the oldest is dropped first. They
cost no thread, and one log line for each kind of offence.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

MAX_STRANGERS = 64
STRANGER_S = 5.0
ROUND_S = 0.5  # maximum that counts between two calls of `process`: a longer time means that this process was stopped
PAUSE_S = 0.1  # pause of accepting when no file descriptor is left
ENDED = "a connection ended before its greeting was complete"


class OffenceLog:
    """Log the first offence of each kind. Any thread may report."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._reported: set[str] = set()
        self._lock = threading.Lock()

    def report(self, kind: str, line: str) -> None:
        """Log the line, unless this kind was reported before."""
        with self._lock:
            new = kind not in self._reported
            self._reported.add(kind)
        if new:
            self._log(line)


@dataclass(slots=True, eq=False)
class Stranger:
    """A connection with an incomplete greeting. deadline: seconds of listening."""

    host: str
    deadline: float
    greeting: bytearray = field(default_factory=bytearray)


class Admission:
    """Accept the connections of a listener and read their greetings, within the selector loop of the caller."""

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        greeting_bytes: int,
        report: Callable[[str, str], None],
    ) -> None:
        """report: called with each offence and its host."""
        self._listener = listener
        self._selector = selector
        self._greeting_bytes = greeting_bytes
        self._report = report
        self._strangers: dict[socket.socket, Stranger] = {}  # the oldest first
        self._complete: list[tuple[socket.socket, str, bytes]] = []
        self._called = time.monotonic()
        self._listened_s = 0.0
        self._pause_ends: float | None = None  # by time.monotonic(), while the listener is not registered
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ)

    def wait_s(self) -> float | None:
        """Return the seconds until `process` must be called again; None: only when a socket is readable."""
        if self._pause_ends is not None:
            return max(0.0, min(ROUND_S, self._pause_ends - time.monotonic()))
        oldest = next(iter(self._strangers.values()), None)
        return None if oldest is None else max(0.0, min(ROUND_S, oldest.deadline - self._listened_s))

    def process(self, ready: Collection[object]) -> list[tuple[socket.socket, str, bytes]]:
        """Return (socket, host, greeting) of connections whose greeting is complete. They are no longer registered.

        ready: the sockets that the selector found readable."""
        now = time.monotonic()
        self._listened_s += min(now - self._called, ROUND_S)
        self._called = now
        for sock in [sock for sock in self._strangers if sock in ready]:  # before new ones push them out
            self._read(sock)
        if self._pause_ends is not None and now >= self._pause_ends:
            self._pause_ends = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._listener in ready:
            self._accept()
        while self._strangers:
            oldest = next(iter(self._strangers.values()))
            if len(self._strangers) > MAX_STRANGERS:
                self._drop_oldest("too many connections without a token")
            elif oldest.deadline <= self._listened_s:
                self._drop_oldest("a connection showed no token in time")
            else:
                break
        complete, self._complete = self._complete, []
        return complete

    def _read(self, sock: socket.socket) -> None:
        """Read the available part of a greeting. A connection with a complete greeting, or an ended one, is removed."""
        stranger = self._strangers[sock]
        try:
            received = sock.recv(self._greeting_bytes - len(stranger.greeting))
        except BlockingIOError:
            return
        except OSError:
            received = b""
        stranger.greeting += received
        if not received:
            self._drop(sock, ENDED)
        elif len(stranger.greeting) == self._greeting_bytes:
            self._forget(sock)
            self._complete.append((sock, stranger.host, bytes(stranger.greeting)))

    def _accept(self) -> None:
        """Accept one connection: one at a time, so that greetings are read before the oldest stranger is dropped."""
        try:
            sock, peer = self._listener.accept()
        except BlockingIOError:
            return  # it has gone already
        except OSError as error:
            self._report(f"a connection could not be accepted ({error.strerror})", "an unknown host")
            if self._strangers:
                self._drop_oldest("a connection without a token gave its place to others")
            else:  # no file descriptor is left, and strangers do not use any
                self._selector.unregister(self._listener)
                self._pause_ends = time.monotonic() + PAUSE_S
            return
        sock.setblocking(False)
        self._strangers[sock] = Stranger(peer[0], self._listened_s + STRANGER_S)
        self._selector.register(sock, selectors.EVENT_READ)

    def _drop_oldest(self, offence: str) -> None:
        """Drop the oldest stranger, unless its greeting arrived after the selector's last check: this process may have
        been stopped in between."""
        sock = next(iter(self._strangers))
        self._read(sock)
        if sock in self._strangers:
            self._drop(sock, offence)

    def _drop(self, sock: socket.socket, offence: str) -> None:
        self._report(offence, self._forget(sock).host)
        sock.close()

    def _forget(self, sock: socket.socket) -> Stranger:
        self._selector.unregister(sock)
        return self._strangers.pop(sock)

    def close(self) -> None:
        """Drop all strangers and stop listening."""
        for sock in self._strangers:
            sock.close()
        self._listener.close()
