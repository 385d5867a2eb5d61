"""Send and receive frames over TCP, and notice a peer that has fallen silent.

A wait ends when no byte has moved for `patience_s`, however long the whole message takes (`silence.py`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dsgd.processes.pairwise.process_memory import ProcessMemory
from dsgd.processes.pairwise.wire import (
    ADDRESS,
    HEADER,
    LEAST_BYTES,
    MAX_NAME_BYTES,
    MAX_SCALARS,
    MAX_TEXT_BYTES,
    PIECE_BYTES,
    READ,
    REFUSALS,
    RELEASED,
    UNREADABLE,
    Frame,
    HelloReply,
    Kind,
    PlaneSettings,
    ProtocolViolation,
    Status,
    as_bytes,
)
from dsgd.processes.silence import SLICES_PER_WAIT, unacknowledged

ALIGNMENT = 64  # bytes, torch's own: some kernels round differently on other addresses
_PROBE = [np.empty(0, np.uint8)]
UNUSED = sys.getrefcount(_PROBE[0])  # of an array that only a list refers to


class VectorPool:
    """Allocate vectors of one dtype, in the memory of earlier ones that are no longer referred to.

    A vector of 45 MB in fresh memory costs as much time in page faults as in copying. Every tensor made here, and every
    view of it, holds a reference to its array, so an array that only the pool refers to has no reader.
    """

    def __init__(self, dtype: torch.dtype, kept: int, pinned: bool = False) -> None:
        """kept: arrays that stay for reuse; beyond that each vector is allocated and freed. pinned: in page-locked
        memory, which a GPU reads without a copy between."""
        self.dtype = dtype
        self._pinned = pinned
        self._kept = kept
        self._arrays: list[np.ndarray] = []
        self._lock = threading.Lock()

    def take(self, length: int) -> Tensor:
        """Return a vector [length] of undefined content that nobody else refers to."""
        count = length * self.dtype.itemsize
        with self._lock:
            array = self._unused(count + ALIGNMENT)
            begin = -array.ctypes.data % ALIGNMENT
            return torch.from_numpy(array[begin : begin + count]).view(self.dtype)

    def _unused(self, count: int) -> np.ndarray:
        arrays = self._arrays
        free = [i for i in range(len(arrays)) if sys.getrefcount(arrays[i]) == UNUSED]
        for i in free:
            if len(arrays[i]) == count:
                return arrays[i]
        array = (
            torch.empty(count, dtype=torch.uint8, pin_memory=True).numpy()
            if self._pinned
            else np.empty(count, np.uint8)
        )
        if len(arrays) < self._kept:
            arrays.append(array)
        elif free:
            arrays[free[0]] = array
        return array


class PeerSilent(Exception):
    """No byte has moved for patience_s."""


@dataclass(frozen=True, slots=True, eq=False)
class LocalNode:
    """The settings and counters that all connections of one node share.

    timeout_s: how long no byte may move in an exchange or a call, patience_s: in a pull, a push or an ask. sent,
    received: called with the bytes of every vector that was written or read."""

    rank: int
    settings: PlaneSettings
    pool: VectorPool
    timeout_s: float
    patience_s: float
    sent: Callable[[int], None]
    received: Callable[[int], None]
    log: Callable[[str], None]
    attaches: bool  # to processes of its host, to read their vectors in place

    @property
    def slice_s(self) -> float:
        """Seconds that one read or write may sleep."""
        return min(self.timeout_s, self.patience_s) / SLICES_PER_WAIT


def connect(address: tuple[str, int], patience_s: float, cancelled: Callable[[], bool]) -> socket.socket:
    """Open a TCP connection. Raises OSError when it is refused, PeerSilent after patience_s or when cancelled."""
    family, kind, protocol, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        try:
            sock.connect(where)
        except BlockingIOError:
            poll = select.poll()
            poll.register(sock, select.POLLOUT)
            slice_s = min(patience_s / SLICES_PER_WAIT, 1.0)
            for _ in range(max(1, round(patience_s / slice_s))):
                if cancelled():
                    raise PeerSilent("it was no longer wanted") from None
                if poll.poll(slice_s * 1e3):
                    break
            else:
                raise PeerSilent(f"no connection for {patience_s:g} s") from None
            if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, os.strerror(code)) from None
        return sock
    except BaseException:
        sock.close()
        raise


class FrameSocket:
    """Send and receive frames over a connected socket, for one reader and one writer at a time.

    received: bytes so far. Methods that read or write raise PeerSilent after patience_s without a byte, and OSError
    (ConnectionResetError at the end of the stream).
    """

    def __init__(self, sock: socket.socket, slice_s: float) -> None:
        """slice_s: how long the kernel lets one read or write sleep, seconds."""
        sock.setblocking(True)  # the kernel's own time-outs save a poll before every read and write
        seconds = max(slice_s, 1e-3)
        interval = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._slice_s = seconds
        self._closing = threading.Lock()  # a closed socket's number may belong to another file by the next shutdown
        self._queued = 0  # bytes that the kernel still had to send or have acknowledged, at the last look
        self.received = 0
        self.memory: ProcessMemory | None = None  # of the peer, where both sides read large vectors in place
        self._sends_in_place = self._reads_in_place = True  # until a vector was there that cannot be read so

    @property
    def is_within_host(self) -> bool:
        """Return whether both ends have one address."""
        return self._socket.getsockname()[0] == self._socket.getpeername()[0]

    def send(self, frame: Frame, vector: Tensor | bytes | None, patience_s: float) -> int:
        """Send a frame and its vector, or the text of an error. Returns the bytes of the vector."""
        payload = as_bytes(vector) if isinstance(vector, Tensor) else vector
        length = -1 if payload is None else len(payload)
        name = frame.name.encode("ascii")
        head = HEADER.pack(
            frame.kind, frame.status, len(frame.scalars), len(name), frame.steps, frame.sequence, length
        ) + struct.pack(f"<{len(name)}s{len(frame.scalars)}d", name, *frame.scalars)
        if not isinstance(vector, Tensor):
            self.write(head, memoryview(payload or b""), patience_s)
            return 0
        assert isinstance(payload, memoryview)
        if self._sends_in_place and self._in_place(length):
            self.write(head, memoryview(ADDRESS.pack(vector.data_ptr())), patience_s)
            self._have_read(payload, patience_s)
        else:
            self.write(head, payload, patience_s)
        return length

    def _have_read(self, payload: memoryview, patience_s: float) -> None:
        """Wait until the peer has read a vector in place, or send what it cannot read."""
        for begin in range(0, len(payload), PIECE_BYTES):
            if self._sign((READ, UNREADABLE), patience_s) == UNREADABLE:
                self._sends_in_place = False
                return self.write(b"", payload[begin:], patience_s)
        self.write(RELEASED, memoryview(b""), patience_s)

    def receive(self, settings: PlaneSettings, patience_s: float) -> Frame:
        """Receive the next frame, up to its payload. Raises ProtocolViolation."""
        header = self.read(HEADER.size, patience_s)
        kind, status, scalars, length, steps, sequence, payload = HEADER.unpack(header)
        if kind not in Kind.__members__.values() or status not in Status.__members__.values():
            raise ProtocolViolation(f"a frame of kind {kind} and status {status}, which do not exist")
        if scalars > MAX_SCALARS or length > MAX_NAME_BYTES:
            raise ProtocolViolation(
                f"{scalars} scalars and a name of {length} bytes, at most {MAX_SCALARS} and {MAX_NAME_BYTES}"
            )
        item = 1 if status == Status.FAILED else settings.dtype.itemsize
        limit = MAX_TEXT_BYTES if status == Status.FAILED else settings.longest * item
        if not -1 <= payload <= limit or (payload > 0 and payload % item):
            raise ProtocolViolation(f"a payload of {payload} bytes, at most {limit} and in items of {item}")
        body = self.read(length + 8 * scalars, patience_s)
        name, *numbers = struct.unpack(f"<{length}s{scalars}d", body)
        if not name.isascii():
            raise ProtocolViolation("an operation whose name is not ASCII")
        return Frame(Kind(kind), Status(status), steps, sequence, name.decode("ascii"), tuple(numbers), payload)

    def receive_vector(self, frame: Frame, node: LocalNode, patience_s: float) -> Tensor:
        """Receive the vector behind a frame, into memory of the node's pool."""
        vector = node.pool.take(frame.payload // node.pool.dtype.itemsize)
        if self._reads_in_place and self._in_place(frame.payload):
            self._read_in_place(as_bytes(vector), node.log, patience_s)
        else:
            self.read_into(as_bytes(vector), patience_s)
        node.received(frame.payload)
        return vector

    def _in_place(self, count: int) -> bool:
        return self.memory is not None and count >= LEAST_BYTES

    def _read_in_place(self, view: memoryview, log: Callable[[str], None], patience_s: float) -> None:
        """Read a vector from the peer's memory; it is whole if this returns."""
        assert self.memory is not None
        (address,) = ADDRESS.unpack(self.read(ADDRESS.size, patience_s))
        for begin in range(0, len(view), PIECE_BYTES):
            piece = view[begin : begin + PIECE_BYTES]
            try:
                self.memory.read_into(piece, address + begin)
            except OSError as error:
                if error.errno != errno.EFAULT:
                    raise
                log(f"large vectors of process {self.memory.pid} come as bytes: they cannot be read where they are")
                self._reads_in_place = False
                self.write(UNREADABLE, memoryview(b""), patience_s)
                return self.read_into(view[begin:], patience_s)
            self.received += len(piece)
            self.write(READ, memoryview(b""), patience_s)
        self._expect(RELEASED, patience_s)

    def _expect(self, sign: bytes, patience_s: float) -> None:
        self._sign((sign,), patience_s)

    def _sign(self, expected: tuple[bytes, ...], patience_s: float) -> bytes:
        if (sign := self.read(1, patience_s)) not in expected:
            raise ProtocolViolation(f"{sign!r} where a vector is read in place, not {expected[0]!r}")
        return sign

    def read(self, count: int, patience_s: float) -> bytes:
        data = bytearray(count)
        self.read_into(memoryview(data), patience_s)
        return bytes(data)

    def read_into(self, view: memoryview, patience_s: float) -> None:
        waited_s = 0.0
        while len(view):
            try:
                count = self._socket.recv_into(view, 0, socket.MSG_WAITALL)  # returns early after a slice of sleep
            except BlockingIOError:
                waited_s = self._waited(waited_s, patience_s)
                continue
            if count == 0:
                raise ConnectionResetError("connection closed")
            self.received += count
            view, waited_s = view[count:], 0.0

    def skip(self, count: int, patience_s: float) -> None:
        """Read a vector of so many bytes and drop it."""
        if self._reads_in_place and self._in_place(count):
            self.read(ADDRESS.size, patience_s)
            self.write(READ * -(-count // PIECE_BYTES), memoryview(b""), patience_s)
            return self._expect(RELEASED, patience_s)
        scratch = memoryview(bytearray(min(count, 1 << 16)))
        while count:
            piece = scratch[:count]
            self.read_into(piece, patience_s)
            count -= len(piece)

    def write(self, head: bytes, payload: memoryview, patience_s: float) -> None:
        """Write both, without joining them first."""
        waited_s = 0.0
        pieces = [memoryview(head), payload]
        while pieces:
            try:
                count = self._socket.sendmsg(pieces)
            except BlockingIOError:
                waited_s = self._waited(waited_s, patience_s)
                continue
            waited_s = 0.0
            while pieces and count >= len(pieces[0]):
                count -= len(pieces.pop(0))
            if pieces:
                pieces[0] = pieces[0][count:]

    def _waited(self, waited_s: float, patience_s: float) -> float:
        """Return the seconds without progress, one more slice included. Raises PeerSilent after patience_s."""
        queued = unacknowledged(self._socket)
        moved, self._queued = queued < self._queued, queued
        waited_s = 0.0 if moved else waited_s + self._slice_s
        if waited_s >= patience_s:
            raise PeerSilent(f"no byte for {patience_s:g} s")
        return waited_s

    def wait_readable(self) -> None:
        """Sleep, without a limit, until there is something to read or the connection has ended."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.poll()

    def has_ended(self) -> bool:
        """Check whether the peer has closed the connection; bytes that are still to be read say that it has not."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def shutdown(self) -> None:
        """Wake the threads that read or write here; bytes that have arrived can still be read. Any thread may call."""
        with self._closing, contextlib.suppress(OSError):  # the peer was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def detach(self) -> socket.socket:
        """Return the socket, non-blocking, for somebody else to use and close."""
        self._socket.setblocking(False)
        return self._socket

    def close(self) -> None:
        with self._closing:
            self._socket.close()


def handshake(link: FrameSocket, hello: bytes, patience_s: float) -> None:
    """Send the client's hello and read the reply. Raises ConnectionRefusedError unless it is WELCOME."""
    link.write(hello, memoryview(b""), patience_s)
    answer = link.read(1, patience_s)[0]
    if answer != HelloReply.WELCOME:
        reason = REFUSALS.get(HelloReply(answer)) if answer in HelloReply.__members__.values() else None
        raise ConnectionRefusedError(reason or f"its answer to our hello was {answer}, which means nothing")
