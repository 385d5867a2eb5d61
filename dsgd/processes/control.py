"""Messages between the coordinator and everybody else: one JSON object each, with vectors behind it.

On a new connection the client sends magic and token, 36 bytes. Then each side sends frames, little endian:
bytes of JSON (4), bytes of vectors (8), the JSON, the vectors. `vectors` in the JSON lists their names, types and
lengths. Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

MAGIC = b"dsgC"
FRAME = struct.Struct("<IQ")
TEXT_LIMIT = 1 << 20
VECTORS_LIMIT = 1 << 36
STRANGERS = 64  # connections that have not shown the token, at most
STRANGER_S = 5.0
DTYPES = {"float32": torch.float32, "float64": torch.float64}

Message = dict[str, Any]


class Closed(ConnectionError):
    """The other side is gone."""


def frame(message: Mapping[str, Any], vectors: Mapping[str, Tensor]) -> list[memoryview]:
    """The pieces of a frame, without copying the vectors, which are contiguous and on the CPU."""
    listed = [[name, str(v.dtype).removeprefix("torch."), v.numel()] for name, v in vectors.items()]
    text = json.dumps({**message, "vectors": listed} if listed else message).encode()
    pieces = [v.numpy().data.cast("B") for v in vectors.values() if v.numel()]
    return [memoryview(FRAME.pack(len(text), sum(map(len, pieces))) + text), *pieces]


class Line:
    """A client's end. Any thread may send; one thread receives.

    Raises Closed when the coordinator is gone, or silent for timeout_s while this side must send or connect."""

    def __init__(self, address: tuple[str, int], token: bytes, timeout_s: float) -> None:
        try:
            self.socket = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise Closed(f"the coordinator at {address[0]}:{address[1]} cannot be reached: {error}") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout_s = timeout_s
        self._sending = threading.Lock()
        self.local_address: str = self.socket.getsockname()[0]
        self._write([memoryview(MAGIC + token)])

    def send(self, message: Mapping[str, Any], vectors: Mapping[str, Tensor] | None = None) -> None:
        self._write(frame(message, vectors or {}))

    def _write(self, pieces: Sequence[memoryview]) -> None:
        try:
            with self._sending:
                for piece in pieces:
                    self.socket.sendall(piece)
        except OSError as error:
            raise Closed(f"the coordinator is gone: {error}") from error

    def receive(self) -> Message:
        """The next message, if it is one without vectors. The coordinator says something every second."""
        return self.receive_with_vectors()[0]

    def receive_with_vectors(self) -> tuple[Message, dict[str, Tensor]]:
        """The next message, and the vectors behind it, which nobody else refers to."""
        length, vectors_length = FRAME.unpack(self._read(FRAME.size))
        if length > TEXT_LIMIT or vectors_length > VECTORS_LIMIT:
            raise Closed(f"the coordinator sent a message of {length + vectors_length} bytes")
        message = json.loads(bytes(self._read(length)))
        return message, _vectors(message.pop("vectors"), self._read(vectors_length)) if vectors_length else {}

    def _read(self, count: int) -> memoryview:
        room = memoryview(bytearray(count))
        filled, silences = 0, 0
        while filled < count:
            try:
                received = self.socket.recv_into(room[filled:])
                silences = 0
            except TimeoutError as error:
                silences += 1  # the first may be our own: this process was stopped
                if silences > 1:
                    raise Closed(f"the coordinator has been silent for {self.timeout_s:g} s") from error
                continue
            except OSError as error:
                raise Closed(f"the coordinator is gone: {error}") from error
            if not received:
                raise Closed("the coordinator is gone")
            filled += received
        return room

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # already closed by the other side
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


@dataclass(eq=False)
class Client:
    """The coordinator's end of one connection. heard: when anything last came, by time.monotonic()."""

    socket: socket.socket
    peer: str
    heard: float
    known: bool = False  # it has shown the token
    owner: Any = None  # who that is, as the coordinator finds out
    outgoing: deque[memoryview] = field(default_factory=deque)
    stage: str = "token"
    room: memoryview = field(default_factory=lambda: memoryview(b""))
    filled: int = 0
    message: Message = field(default_factory=dict)
    vectors_length: int = 0


Event = tuple[Client, Message | None, dict[str, Tensor]]  # no message: the connection has ended


class Hub:
    """The coordinator's end of all connections, in one thread."""

    def __init__(self, listener: socket.socket, token: bytes, log: Callable[[str], None]) -> None:
        """listener: bound and listening already."""
        self._listener = listener
        self._listener.setblocking(False)
        self._greeting = MAGIC + token
        self._log = log
        self._complained: set[str] = set()
        self._strangers: list[Client] = []
        self._clients: list[Client] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, None)
        self._events: list[Event] = []

    def poll(self, timeout_s: float) -> list[Event]:
        """What has come within at most this time; whole messages only."""
        for key, mask in self._selector.select(timeout_s):
            client: Client | None = key.data
            if client is None:
                self._accept()
            elif client.socket.fileno() < 0:  # dropped a moment ago
                continue
            elif mask & selectors.EVENT_WRITE and not self._flush(client):
                self._drop(client)
            elif mask & selectors.EVENT_READ:
                self._read(client)
        limit = time.monotonic() - STRANGER_S
        for stranger in [client for client in self._strangers if client.heard < limit]:
            self._offence(stranger, "a connection showed no token in time")
        events, self._events = self._events, []
        return events

    def send(
        self,
        client: Client,
        message: Mapping[str, Any],
        vectors: Mapping[str, Tensor] | None = None,
        *,
        droppable: bool = False,
    ) -> None:
        """Never waits. The vectors, contiguous and on the CPU, are not copied. droppable: not worth queueing behind
        messages that the client does not take."""
        if client not in self._clients or (droppable and client.outgoing):
            return
        client.outgoing.extend(frame(message, vectors or {}))
        if not self._flush(client):
            self._drop(client)

    def close(self) -> None:
        """End every connection, after a short try to send what is still queued."""
        for client in [*self._clients, *self._strangers]:
            client.socket.settimeout(0.5)
            with contextlib.suppress(OSError):  # it no longer listens
                for piece in client.outgoing:
                    client.socket.sendall(piece)
                client.socket.shutdown(socket.SHUT_RDWR)
            client.socket.close()
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, peer = self._listener.accept()
        except OSError:  # it has gone away again, or there are too many open files: the next poll tries again
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Client(connection, peer[0], time.monotonic())
        client.room = memoryview(bytearray(len(self._greeting)))
        self._strangers.append(client)
        self._selector.register(connection, selectors.EVENT_READ, client)
        if len(self._strangers) > STRANGERS:
            self._offence(self._strangers[0], "too many connections without a token")

    def _flush(self, client: Client) -> bool:
        try:
            while client.outgoing:
                piece = client.outgoing[0]
                sent = client.socket.send(piece)
                if sent < len(piece):
                    client.outgoing[0] = piece[sent:]
                else:
                    client.outgoing.popleft()
        except BlockingIOError:
            pass
        except OSError:
            return False
        waiting = selectors.EVENT_WRITE if client.outgoing else 0
        self._selector.modify(client.socket, selectors.EVENT_READ | waiting, client)
        return True

    def _read(self, client: Client) -> None:
        for _ in range(64):  # others want to be heard, too
            try:
                count = client.socket.recv_into(client.room[client.filled :])
            except BlockingIOError:
                return
            except OSError:
                count = 0
            if count == 0:
                self._drop(client)
                return
            client.heard = time.monotonic() if client.known else client.heard
            client.filled += count
            while client.filled == len(client.room):
                if not self._advance(client):
                    return

    def _advance(self, client: Client) -> bool:
        """The room is full: on to the next piece. False if the connection was ended."""
        content, stage = client.room, client.stage
        if stage == "token":
            if not hmac.compare_digest(bytes(content), self._greeting):
                self._offence(client, "a connection showed a wrong token")
                return False
            client.known = True
            self._strangers.remove(client)
            self._clients.append(client)
        elif stage == "frame":
            length, client.vectors_length = FRAME.unpack(content)
            if not 0 < length <= TEXT_LIMIT or client.vectors_length > VECTORS_LIMIT:
                self._offence(client, "a message had no possible length")
                return False
            return self._expect(client, "text", length)
        elif stage == "text":
            try:
                client.message = json.loads(bytes(content))
                client.message["kind"]
            except (ValueError, TypeError, KeyError):
                self._offence(client, "a message was not readable")
                return False
            if client.vectors_length:
                return self._expect(client, "vectors", client.vectors_length)
            self._events.append((client, client.message, {}))
        else:
            try:
                vectors = _vectors(client.message.pop("vectors"), content)
            except (ValueError, TypeError, KeyError):
                self._offence(client, "a message was not readable")
                return False
            self._events.append((client, client.message, vectors))
        return self._expect(client, "frame", FRAME.size)

    def _expect(self, client: Client, stage: str, length: int) -> bool:
        client.stage, client.filled, client.room = stage, 0, memoryview(bytearray(length))
        return True

    def _offence(self, client: Client, what: str) -> None:
        if what not in self._complained:
            self._complained.add(what)
            self._log(f"control: {what}, from {client.peer}; such connections are dropped")
        self._drop(client)

    def _drop(self, client: Client) -> None:
        self._selector.unregister(client.socket)
        client.socket.close()
        if client.known:
            self._clients.remove(client)
            self._events.append((client, None, {}))
        else:
            self._strangers.remove(client)


def _vectors(listed: Sequence[tuple[str, str, int]], content: memoryview) -> dict[str, Tensor]:
    vectors: dict[str, Tensor] = {}
    begin = 0
    for name, dtype, length in listed:
        kind = DTYPES[dtype]
        vectors[name] = (
            torch.frombuffer(content, dtype=kind, count=length, offset=begin) if length else torch.empty(0, dtype=kind)
        )
        begin += length * kind.itemsize
    return vectors
