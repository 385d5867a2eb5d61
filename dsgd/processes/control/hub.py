"""Hold the coordinator's end of all control connections, in one thread."""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dsgd.processes.admission import ENDED, Admission, OffenceLog
from dsgd.processes.control.frames import CONTROL_MAGIC, FRAME, BadFrame, Message, decode_body, decode_header, encode

READS_PER_POLL = 64  # of one client, before the others are served
CLOSING_SEND_S = 0.5


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
            if mask & selectors.EVENT_WRITE and not self._flush(client):
                self._drop(client)
            elif mask & selectors.EVENT_READ:
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
        self,
        client: Client,
        message: Mapping[str, Any],
        vectors: Mapping[str, Tensor] | None = None,
        *,
        droppable: bool = False,
    ) -> None:
        """Queue a message; never waits. The vectors, contiguous and on the CPU, are not copied.

        droppable: leave the message out while earlier ones are still queued."""
        if client not in self._clients or (droppable and client.outgoing):
            return
        client.outgoing.extend(encode(message, vectors or {}))
        if not self._flush(client):
            self._drop(client)

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

    def _flush(self, client: Client) -> bool:
        """Write what the socket takes; returns False if the connection is lost."""
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
            return False
        writable = selectors.EVENT_WRITE if client.outgoing else 0
        self._selector.modify(client.socket, selectors.EVENT_READ | writable, client)
        return True

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
