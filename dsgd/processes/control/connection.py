"""Connect a process to the coordinator."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from dsgd.processes.control.frames import CONTROL_MAGIC, FRAME, BadFrame, Message, decode_body, decode_header, encode


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

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # already closed by the other side
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
