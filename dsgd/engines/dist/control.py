"""Both ends of the connections between the coordinator and all other processes of a run.

A client opens its connection with CONTROL_MAGIC and the token, 36 bytes. Then each side sends frames (`frames.py`).
"""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from dsgd.engines.dist.admission import ENDED, Admission, OffenceLog
from dsgd.engines.dist.frames import (
    FRAME,
    NO_VECTORS,
    BadFrame,
    Empty,
    Message,
    VectorLimit,
    decode_header,
    decode_text,
    encode_frame,
    in_memory,
    rooms,
)
from dsgd.engines.dist.io_thread import SLICES_PER_WAIT

CONTROL_MAGIC = b"dsgC"
READS_PER_POLL = 64  # of one client, before the others are served
CLOSING_SEND_S = 0.5  # to all clients together


class CoordinatorGone(ConnectionError):
    """The connection to the coordinator is lost."""


class CoordinatorConnection:
    """Send messages to the coordinator and receive its own. Any thread may send; one thread receives.

    limit: limit of received vectors. Raises CoordinatorGone when the coordinator has ended, or was silent for timeout_s
    while this process was not stopped."""

    def __init__(self, address: tuple[str, int], token: bytes, timeout_s: float) -> None:
        try:
            self.socket = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise CoordinatorGone(f"the coordinator at {address[0]}:{address[1]} cannot be reached: {error}") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(timeout_s / SLICES_PER_WAIT)
        self.timeout_s = timeout_s
        self.limit = NO_VECTORS
        self._sending = threading.Lock()
        self.local_address: str = self.socket.getsockname()[0]
        self._write([memoryview(CONTROL_MAGIC + token)])

    def send(self, message: Mapping[str, Any], vectors: Mapping[str, Tensor] | None = None) -> None:
        """Send a message, with vectors that are contiguous and on the CPU."""
        self._write(encode_frame(message, vectors or {}))

    def _write(self, parts: Sequence[memoryview]) -> None:
        with self._sending:
            for part in parts:
                while part:
                    part = part[self._patiently(partial(self.socket.send, part)) :]

    def _patiently(self, move: Callable[[], int]) -> int:
        """Return the bytes that a call on the socket has moved. Its waits are short, and each counts at most with its
        planned duration: if one took longer, this process was stopped."""
        slices = 0
        while True:
            try:
                return move()
            except TimeoutError as error:
                slices += 1
                if slices == SLICES_PER_WAIT:
                    raise CoordinatorGone(f"the coordinator has been silent for {self.timeout_s:g} s") from error
            except OSError as error:
                raise CoordinatorGone(f"the coordinator is gone: {error}") from error

    def receive(self) -> Message:
        """Return the next message without its vectors. The coordinator sends a heartbeat every second."""
        return self.receive_with_vectors()[0]

    def receive_with_vectors(self) -> tuple[Message, dict[str, Tensor]]:
        """Return the next message and its vectors, in new memory."""
        try:
            text_bytes, vectors_bytes = decode_header(self._read(memoryview(bytearray(FRAME.size))), self.limit)
            text = self._read(memoryview(bytearray(text_bytes)))
            message, vectors = decode_text(text, vectors_bytes, self.limit)
        except BadFrame as error:
            raise CoordinatorGone(f"the coordinator sent nonsense: {error}") from error
        for room in rooms(vectors):
            self._read(room)
        return message, vectors

    def _read(self, room: memoryview) -> memoryview:
        """Fill the room, and return it."""
        filled = 0
        while filled < len(room):
            received = self._patiently(partial(self.socket.recv_into, room[filled:]))
            if not received:
                raise CoordinatorGone("the coordinator is gone")
            filled += received
        return room


@dataclass(eq=False)
class Client:
    """One connection that has shown the token.

    heard: time of the last data, by time.monotonic(). owner: set by the coordinator. role, node: role and node that the
    client has claimed. exclusive: role that only one connection at a time may have. limit: limit of its vectors. room:
    memory to be filled next, of a header, a JSON or a vector; next_room: yields the memory after that."""

    socket: socket.socket
    host: str
    heard: float
    owner: Any = None
    role: str | None = None
    node: int | None = None
    exclusive: str | None = None
    limit: VectorLimit = NO_VECTORS
    outgoing: deque[memoryview] = field(default_factory=deque)
    next_room: Iterator[memoryview] = field(init=False)
    room: memoryview = field(init=False)


HubEvent = tuple[Client, Message | None, dict[str, Tensor]]  # no message: the connection has ended


class Rules(Protocol):
    """Decide what clients may do. clients: the most connections at a time."""

    clients: int

    def check(self, client: Client, message: Message, vectors: Mapping[str, Tensor]) -> None:
        """Raise BadFrame unless this client may send this message; a hello sets what the client may send."""
        ...


class Hub:
    """Receive messages from all clients and send to each, without waiting for any."""

    def __init__(
        self, listener: socket.socket, token: bytes, log: Callable[[str], None], rules: Rules, empty: Empty = in_memory
    ) -> None:
        """listener: bound and listening already. empty: makes the vectors that are received."""
        self._greeting = CONTROL_MAGIC + token
        self._offences = OffenceLog(log)
        self._rules = rules
        self._empty = empty
        self._clients: set[Client] = set()
        self._selector = selectors.DefaultSelector()
        self._admission = Admission(listener, self._selector, len(self._greeting), self._report)
        self._events: list[HubEvent] = []

    def poll(self, timeout_s: float) -> list[HubEvent]:
        """Return the complete messages that arrive within at most this time, and the connections that ended."""
        ready = self._selector.select(timeout_s)
        for key, mask in ready:
            client: Client | None = key.data
            if client is None or client not in self._clients:  # not admitted yet; dropped a moment ago
                continue
            if mask & selectors.EVENT_WRITE:
                self._flush(client)
            if mask & selectors.EVENT_READ and client in self._clients:
                self._read(client)
        for sock, host, greeting in self._admission.process({key.fileobj for key, _ in ready}):
            if not hmac.compare_digest(greeting, self._greeting):
                self._report("a connection showed a wrong token", host)
                sock.close()
            elif len(self._clients) >= self._rules.clients:
                self._report("there were more connections than the run needs", host)
                sock.close()
            else:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client = Client(sock, host, time.monotonic())
                client.next_room = self._receive(client)
                client.room = next(client.next_room)
                self._clients.add(client)
                self._selector.register(sock, selectors.EVENT_READ, client)
        events, self._events = self._events, []
        return events

    def send(
        self,
        client: Client | None,
        message: Message,
        vectors: Mapping[str, Tensor] | None = None,
        *,
        droppable: bool = False,
    ) -> None:
        """Queue a message; never waits. The vectors, contiguous and on the CPU, are not copied. client: receiver;
        nothing is sent to None, or over an ended connection.

        droppable: omit the message while earlier ones are still queued."""
        if client is None or client not in self._clients or (droppable and client.outgoing):
            return
        client.outgoing.extend(encode_frame(message, vectors or {}))
        self._flush(client)

    def drop(self, client: Client | None) -> None:
        """End the connection to a client. The next `poll` reports its end."""
        if client is not None and client in self._clients:
            self._drop(client)

    def close(self) -> None:
        """End every connection, after a short attempt to send queued messages."""
        deadline = time.monotonic() + CLOSING_SEND_S
        for client in self._clients:
            with contextlib.suppress(OSError):  # it no longer listens
                for part in client.outgoing:
                    client.socket.settimeout(max(0.0, deadline - time.monotonic()))
                    client.socket.sendall(part)
                client.socket.shutdown(socket.SHUT_RDWR)
            client.socket.close()
        self._admission.close()
        self._selector.close()

    def _flush(self, client: Client) -> None:
        """Write queued bytes as far as the socket takes them. Drops the client if its connection is lost."""
        try:
            while client.outgoing:
                part = client.outgoing[0]
                sent = client.socket.send(part)
                if sent < len(part):
                    client.outgoing[0] = part[sent:]
                else:
                    client.outgoing.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
            return
        writable = selectors.EVENT_WRITE if client.outgoing else 0
        self._selector.modify(client.socket, selectors.EVENT_READ | writable, client)

    def refuse(self, client: Client, offence: str) -> None:
        """End the connection of a client that has sent an invalid message."""
        if client in self._clients:
            self._report(offence, client.host)
            self._drop(client)

    def _receive(self, client: Client) -> Iterator[memoryview]:
        """Yield the memory for the client's next bytes, and continue once it is full. Raises BadFrame."""
        while True:
            yield (header := memoryview(bytearray(FRAME.size)))
            text_bytes, vectors_bytes = decode_header(header, client.limit)
            yield (text := memoryview(bytearray(text_bytes)))
            message, vectors = decode_text(text, vectors_bytes, client.limit, self._empty)
            yield from rooms(vectors)
            self._rules.check(client, message, vectors)
            if message["kind"] == "hello" and client.exclusive is not None:
                self._make_room(client)
            self._events.append((client, message, vectors))

    def _read(self, client: Client) -> None:
        try:
            for _ in range(READS_PER_POLL):
                count = client.socket.recv_into(client.room)
                if count == 0:
                    self._drop(client)
                    return
                client.heard = time.monotonic()
                client.room = client.room[count:] or next(client.next_room)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
        except BadFrame as error:
            self.refuse(client, str(error))

    def _make_room(self, client: Client) -> None:
        """Let a client take the place of one that has gone. Raises BadFrame if that is still there."""
        for other in [other for other in self._clients if other.exclusive == client.exclusive and other is not client]:
            self._read(other)  # its end may not have been seen yet
            if other in self._clients:
                raise BadFrame(f"a second connection wanted to send {client.exclusive}")

    def _report(self, offence: str, host: str) -> None:
        if offence != ENDED:
            self._offences.report(offence, f"control: {offence}, from {host}; such connections are dropped")

    def _drop(self, client: Client) -> None:
        self._selector.unregister(client.socket)
        client.socket.close()
        self._clients.remove(client)
        self._events.append((client, None, {}))
