"""Messages between the coordinator and all other processes of a run: their bytes, and both ends of a connection.

A message is one JSON object, with vectors behind it. A client opens its connection with CONTROL_MAGIC and the token, 36
bytes. Then each side sends frames, little endian: bytes of JSON (4), bytes of vectors (8), the JSON, the vectors.
`vectors` in the JSON lists their names, types and lengths. Nothing is ever unpickled.
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

from dsgd.processes.admission import ENDED, Admission, OffenceLog

CONTROL_MAGIC = b"dsgC"
FRAME = struct.Struct("<IQ")
TEXT_LIMIT = 1 << 20
VECTORS_LIMIT = 1 << 36
TEXT_ALIGNMENT = 64  # bytes; the JSON is padded to it, since vectors are used where they were received
DTYPES = {"float32": torch.float32, "float64": torch.float64}

Message = dict[str, Any]
READS_PER_POLL = 64  # of one client, before the others are served
CLOSING_SEND_S = 0.5


class BadFrame(Exception):
    """A frame that the protocol does not allow; nothing behind it can be understood."""


def encode(message: Mapping[str, Any], vectors: Mapping[str, Tensor]) -> list[memoryview]:
    """Return the parts of a frame. The vectors must be contiguous and on the CPU; they are not copied."""
    listed = [[name, str(v.dtype).removeprefix("torch."), v.numel()] for name, v in vectors.items()]
    text = json.dumps({**message, "vectors": listed} if listed else message).encode()
    text += b" " * (-len(text) % TEXT_ALIGNMENT)
    parts = [v.numpy().data.cast("B") for v in vectors.values() if v.numel()]
    return [memoryview(FRAME.pack(len(text), sum(map(len, parts))) + text), *parts]


def decode_header(header: memoryview) -> tuple[int, int]:
    """Return the bytes of JSON and the bytes of vectors that follow. Raises BadFrame beyond the limits."""
    text_bytes, vectors_bytes = FRAME.unpack(header)
    if not 0 < text_bytes <= TEXT_LIMIT or vectors_bytes > VECTORS_LIMIT:
        raise BadFrame("a message had no possible length")
    return text_bytes, vectors_bytes


def decode_body(body: memoryview, text_bytes: int) -> tuple[Message, dict[str, Tensor]]:
    """Return the message and its vectors, which share the memory of `body`. Raises BadFrame."""
    vectors: dict[str, Tensor] = {}
    begin = text_bytes
    try:
        message = json.loads(bytes(body[:text_bytes]))
        message["kind"]
        for name, dtype_name, length in message.pop("vectors", ()):
            dtype = DTYPES[dtype_name]
            vectors[name] = torch.empty(0, dtype=dtype)
            if length:  # frombuffer takes no empty range
                vectors[name] = torch.frombuffer(body, dtype=dtype, count=length, offset=begin)
            begin += length * dtype.itemsize
    except (ValueError, TypeError, KeyError) as error:
        raise BadFrame("a message was not readable") from error
    if begin != len(body):
        raise BadFrame("a message was not readable")
    return message, vectors


class CoordinatorGone(ConnectionError):
    """The connection to the coordinator is lost."""


class CoordinatorConnection:
    """Send messages to the coordinator and receive its own. Any thread may send; one thread receives.

    Raises CoordinatorGone when the coordinator has ended or was silent for timeout_s."""

    def __init__(self, address: tuple[str, int], token: bytes, timeout_s: float) -> None:
        try:
            self.socket = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise CoordinatorGone(f"the coordinator at {address[0]}:{address[1]} cannot be reached: {error}") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout_s = timeout_s
        self._sending = threading.Lock()
        self.local_address: str = self.socket.getsockname()[0]
        self._write([memoryview(CONTROL_MAGIC + token)])

    def send(self, message: Mapping[str, Any], vectors: Mapping[str, Tensor] | None = None) -> None:
        """Send a message, with vectors that are contiguous and on the CPU."""
        self._write(encode(message, vectors or {}))

    def _write(self, parts: Sequence[memoryview]) -> None:
        try:
            with self._sending:
                for part in parts:
                    self.socket.sendall(part)
        except OSError as error:
            raise CoordinatorGone(f"the coordinator is gone: {error}") from error

    def receive(self) -> Message:
        """Return the next message without its vectors. The coordinator sends a heartbeat every second."""
        return self.receive_with_vectors()[0]

    def receive_with_vectors(self) -> tuple[Message, dict[str, Tensor]]:
        """Return the next message and its vectors, in memory of their own."""
        try:
            text_bytes, vectors_bytes = decode_header(self._read(FRAME.size))
            return decode_body(self._read(text_bytes + vectors_bytes), text_bytes)
        except BadFrame as error:
            raise CoordinatorGone(f"the coordinator sent nonsense: {error}") from error

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
                    raise CoordinatorGone(f"the coordinator has been silent for {self.timeout_s:g} s") from error
                continue
            except OSError as error:
                raise CoordinatorGone(f"the coordinator is gone: {error}") from error
            if not received:
                raise CoordinatorGone("the coordinator is gone")
            filled += received
        return room


@dataclass(eq=False)
class Client:
    """One connection that has shown the token. heard: when data last came, by time.monotonic(). owner: set by the
    coordinator. room: memory of the header, or of the body behind a header that announced text_bytes of JSON."""

    socket: socket.socket
    host: str
    heard: float
    owner: Any = None
    outgoing: deque[memoryview] = field(default_factory=deque)
    room: memoryview = field(default_factory=lambda: memoryview(bytearray(FRAME.size)))
    filled: int = 0
    text_bytes: int = 0


Event = tuple[Client, Message | None, dict[str, Tensor]]  # no message: the connection has ended


class Hub:
    """Receive messages from all clients and send to each, without waiting for any."""

    def __init__(self, listener: socket.socket, token: bytes, log: Callable[[str], None]) -> None:
        """listener: bound and listening already."""
        self._greeting = CONTROL_MAGIC + token
        self._offences = OffenceLog(log)
        self._clients: set[Client] = set()
        self._selector = selectors.DefaultSelector()
        self._admission = Admission(listener, self._selector, len(self._greeting), self._report)
        self._events: list[Event] = []

    def poll(self, timeout_s: float) -> list[Event]:
        """Return the complete messages that came within at most this time, and the connections that ended."""
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
            if hmac.compare_digest(greeting, self._greeting):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client = Client(sock, host, time.monotonic())
                self._clients.add(client)
                self._selector.register(sock, selectors.EVENT_READ, client)
            else:
                self._report("a connection showed a wrong token", host)
                sock.close()
        events, self._events = self._events, []
        return events

    def send(
        self, client: Client, message: Message, vectors: Mapping[str, Tensor] | None = None, *, droppable: bool = False
    ) -> None:
        """Queue a message; never waits. The vectors, contiguous and on the CPU, are not copied.

        droppable: leave the message out while earlier ones are still queued."""
        if client not in self._clients or (droppable and client.outgoing):
            return
        client.outgoing.extend(encode(message, vectors or {}))
        self._flush(client)

    def close(self) -> None:
        """End every connection, after a short try to send what is still queued."""
        for client in self._clients:
            client.socket.settimeout(CLOSING_SEND_S)
            with contextlib.suppress(OSError):  # it no longer listens
                for part in client.outgoing:
                    client.socket.sendall(part)
                client.socket.shutdown(socket.SHUT_RDWR)
            client.socket.close()
        self._admission.close()
        self._selector.close()

    def _flush(self, client: Client) -> None:
        """Write what the socket takes. Drops the client if its connection is lost."""
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

    def _read(self, client: Client) -> None:
        try:
            for _ in range(READS_PER_POLL):
                count = client.socket.recv_into(client.room[client.filled :])
                if count == 0:
                    self._drop(client)
                    return
                client.heard = time.monotonic()
                client.filled += count
                if client.filled == len(client.room):
                    self._advance(client)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
        except BadFrame as error:
            self._report(str(error), client.host)
            self._drop(client)

    def _advance(self, client: Client) -> None:
        """Decode a complete header or body and make room for what follows. Raises BadFrame."""
        if client.text_bytes:
            self._events.append((client, *decode_body(client.room, client.text_bytes)))
            client.text_bytes, client.room = 0, memoryview(bytearray(FRAME.size))
        else:
            client.text_bytes, vectors_bytes = decode_header(client.room)
            client.room = memoryview(bytearray(client.text_bytes + vectors_bytes))
        client.filled = 0

    def _report(self, offence: str, host: str) -> None:
        if offence != ENDED:
            self._offences.report(offence, f"control: {offence}, from {host}; such connections are dropped")

    def _drop(self, client: Client) -> None:
        self._selector.unregister(client.socket)
        client.socket.close()
        self._clients.remove(client)
        self._events.append((client, None, {}))
