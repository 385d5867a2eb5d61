"""Send and receive frames over TCP, in coroutines, and notice a peer that has fallen silent.

A wait ends when no byte has moved for `patience_s`; the whole message may take longer (`io_thread.py`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsgd.engines.dist.io_thread import SLICES_PER_WAIT, Loop, Sleep, loop, settled, unacknowledged
from dsgd.engines.dist.pairwise import wire
from dsgd.engines.dist.pairwise.process_memory import ProcessMemory
from dsgd.engines.dist.pairwise.wire import Frame, Kind, PlaneSettings, ProtocolViolation, Status, as_bytes

BATCH_BYTES = 1 << 21  # of a vector, for which its reader is woken
ALIGNMENT = 64  # bytes, torch's own: some kernels round differently on other addresses
_PROBE = [np.empty(0, np.uint8)]
UNUSED = sys.getrefcount(_PROBE[0])  # of an array that only a list refers to


class VectorPool:
    """Allocate vectors of one dtype, in the memory of earlier ones that are no longer referred to.

    A vector of 45 MB in fresh memory costs as much time in page faults as in copying. Every tensor made here, and every
    view of it, holds a reference to its array, so an array that only the pool refers to has no reader."""

    def __init__(self, dtype: torch.dtype, kept: int, pinned: bool = False) -> None:
        """kept: number of arrays kept for reuse; further vectors are allocated and freed. pinned: use page-locked
        memory, which a GPU reads without an intermediate copy."""
        self.dtype = dtype
        self._pinned = pinned
        self._kept = kept
        self._arrays: list[np.ndarray] = []
        self._lock = threading.Lock()

    def take(self, length: int) -> Tensor:
        """Return a vector [length] of undefined content without other references."""
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

    timeout_s: maximum time without a moved byte in an exchange or a call. patience_s: the same for a pull, a push or an
    ask. sent, received: called with the bytes of every vector written or read."""

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


class FrameSocket:
    """Send and receive frames over a connected socket, for one coroutine at a time.

    received: bytes so far. Methods that read or write raise PeerSilent after patience_s without a byte, and OSError
    (ConnectionResetError at the end of the stream)."""

    def __init__(self, sock: socket.socket, slice_s: float) -> None:
        """slice_s: maximum of one sleep, seconds."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._slice_s = max(slice_s, 1e-3)
        self._loop: Loop | None = None  # that watches the socket
        self._waiting: Sleep | None = None
        self._batch = 1  # bytes for which the kernel calls this socket readable
        self._ended = False
        self._queued = 0  # bytes that the kernel still had to send or have acknowledged, at the last look
        self.received = 0
        self.memory: ProcessMemory | None = None  # memory of the peer, if both sides read large vectors in place
        self._sends_in_place = self._reads_in_place = True  # until a vector was there that cannot be read so

    async def connect(self, where: Any, patience_s: float) -> None:
        """Connect to the address of a socket. Raises OSError when it is refused."""
        with contextlib.suppress(BlockingIOError):
            return self._socket.connect(where)
        waited_s = 0.0
        while not await self._ready(self._slice_s):
            waited_s += self._slice_s
            if waited_s >= patience_s:
                raise PeerSilent(f"no connection for {patience_s:g} s")
        if self._ended:
            raise PeerSilent("it was no longer wanted")
        if code := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code))

    @property
    def is_within_host(self) -> bool:
        """Return whether both ends have one address."""
        return self._socket.getsockname()[0] == self._socket.getpeername()[0]

    async def send(self, frame: Frame, vector: Tensor | bytes | None, patience_s: float) -> int:
        """Send a frame and its vector, or the text of an error. Returns the bytes of the vector."""
        payload = as_bytes(vector) if isinstance(vector, Tensor) else vector
        length = -1 if payload is None else len(payload)
        name = frame.name.encode("ascii")
        head = wire.HEADER.pack(
            frame.kind, frame.status, len(frame.scalars), len(name), frame.steps, frame.sequence, length
        ) + struct.pack(f"<{len(name)}s{len(frame.scalars)}d", name, *frame.scalars)
        if not isinstance(vector, Tensor):
            await self.write(head, memoryview(payload or b""), patience_s)
            return 0
        assert isinstance(payload, memoryview)
        if self._sends_in_place and self._in_place(length):
            await self.write(head, memoryview(wire.ADDRESS.pack(vector.data_ptr())), patience_s)
            await self._have_read(payload, patience_s)
        else:
            await self.write(head, payload, patience_s)
        return length

    async def _have_read(self, payload: memoryview, patience_s: float) -> None:
        """Wait until the peer has read a vector in place, or send the part that it cannot read."""
        for begin in range(0, len(payload), wire.PIECE_BYTES):
            if await self._sign((wire.READ, wire.UNREADABLE), patience_s) == wire.UNREADABLE:
                self._sends_in_place = False
                return await self.write(b"", payload[begin:], patience_s)
        await self.write(wire.RELEASED, memoryview(b""), patience_s)

    async def receive(self, settings: PlaneSettings, patience_s: float) -> Frame:
        """Receive the next frame, up to its payload. Raises ProtocolViolation."""
        header = await self.read(wire.HEADER.size, patience_s)
        kind, status, scalars, length, steps, sequence, payload = wire.HEADER.unpack(header)
        if kind not in Kind.__members__.values() or status not in Status.__members__.values():
            raise ProtocolViolation(f"a frame of kind {kind} and status {status}, which do not exist")
        if scalars > wire.MAX_SCALARS or length > wire.MAX_NAME_BYTES:
            raise ProtocolViolation(
                f"{scalars} scalars and a name of {length} bytes, at most {wire.MAX_SCALARS} and {wire.MAX_NAME_BYTES}"
            )
        item = 1 if status == Status.FAILED else settings.dtype.itemsize
        limit = wire.MAX_TEXT_BYTES if status == Status.FAILED else settings.longest * item
        if not -1 <= payload <= limit or (payload > 0 and payload % item):
            raise ProtocolViolation(f"a payload of {payload} bytes, at most {limit} and in items of {item}")
        body = await self.read(length + 8 * scalars, patience_s)
        name, *numbers = struct.unpack(f"<{length}s{scalars}d", body)
        if not name.isascii():
            raise ProtocolViolation("an operation whose name is not ASCII")
        return Frame(Kind(kind), Status(status), steps, sequence, name.decode("ascii"), tuple(numbers), payload)

    async def receive_vector(self, frame: Frame, node: LocalNode, patience_s: float) -> Tensor:
        """Receive the vector behind a frame, into memory of the node's pool."""
        vector = node.pool.take(frame.payload // node.pool.dtype.itemsize)
        if self._reads_in_place and self._in_place(frame.payload):
            await self._read_in_place(as_bytes(vector), node.log, patience_s)
        else:
            await self.read_into(as_bytes(vector), patience_s)
        node.received(frame.payload)
        return vector

    def _in_place(self, count: int) -> bool:
        return self.memory is not None and count >= wire.LEAST_BYTES

    async def _read_in_place(self, view: memoryview, log: Callable[[str], None], patience_s: float) -> None:
        """Read a vector from the peer's memory; it is whole if this returns."""
        assert self.memory is not None
        (address,) = wire.ADDRESS.unpack(await self.read(wire.ADDRESS.size, patience_s))
        for begin in range(0, len(view), wire.PIECE_BYTES):
            piece = view[begin : begin + wire.PIECE_BYTES]
            try:
                self.memory.read_into(piece, address + begin)
            except OSError as error:
                if error.errno != errno.EFAULT:
                    raise
                log(f"large vectors of process {self.memory.pid} come as bytes: they cannot be read where they are")
                self._reads_in_place = False
                await self.write(wire.UNREADABLE, memoryview(b""), patience_s)
                return await self.read_into(view[begin:], patience_s)
            self.received += len(piece)
            await self.write(wire.READ, memoryview(b""), patience_s)
        await self._sign((wire.RELEASED,), patience_s)

    async def _sign(self, expected: tuple[bytes, ...], patience_s: float) -> bytes:
        if (sign := await self.read(1, patience_s)) not in expected:
            raise ProtocolViolation(f"{sign!r} where a vector is read in place, not {expected[0]!r}")
        return sign

    async def read(self, count: int, patience_s: float) -> bytes:
        data = bytearray(count)
        await self.read_into(memoryview(data), patience_s)
        return bytes(data)

    async def read_into(self, view: memoryview, patience_s: float) -> None:
        waited_s = 0.0
        while len(view):
            try:
                count = self._socket.recv_into(view)
            except BlockingIOError:
                self._set_batch(BATCH_BYTES if len(view) >= BATCH_BYTES else 1)
                waited_s = await self._wait(waited_s, patience_s)
                continue
            if count == 0:
                raise ConnectionResetError("connection closed")
            self.received += count
            view, waited_s = view[count:], 0.0

    def _set_batch(self, batch: int) -> None:
        if batch != self._batch:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, batch)
            self._batch = batch

    async def skip(self, count: int, patience_s: float) -> None:
        """Read a vector of `count` bytes and discard it."""
        if self._reads_in_place and self._in_place(count):
            await self.read(wire.ADDRESS.size, patience_s)
            await self.write(wire.READ * -(-count // wire.PIECE_BYTES), memoryview(b""), patience_s)
            await self._sign((wire.RELEASED,), patience_s)
            return
        scratch = memoryview(bytearray(min(count, 1 << 16)))
        while count:
            piece = scratch[:count]
            await self.read_into(piece, patience_s)
            count -= len(piece)

    async def write(self, head: bytes, payload: memoryview, patience_s: float) -> None:
        """Write both, without joining them first."""
        waited_s = 0.0
        pieces = [memoryview(head), payload]
        while pieces:
            try:
                count = self._socket.sendmsg(pieces)
            except BlockingIOError:
                waited_s = await self._wait(waited_s, patience_s)
                continue
            waited_s = 0.0
            while pieces and count >= len(pieces[0]):
                count -= len(pieces.pop(0))
            if pieces:
                pieces[0] = pieces[0][count:]

    async def _wait(self, waited_s: float, patience_s: float) -> float:
        """Wait until the socket is ready, at most for a slice. Returns the seconds without progress, 0 if it is ready.
        Raises PeerSilent if they had reached patience_s before."""
        if waited_s >= patience_s:
            raise PeerSilent(f"no byte for {patience_s:g} s")
        if await self._ready(self._slice_s):
            return waited_s
        queued = unacknowledged(self._socket)
        moved, self._queued = queued < self._queued, queued
        return 0.0 if moved else waited_s + self._slice_s

    async def _ready(self, limit_s: float | None) -> bool:
        """Return whether the socket may have become ready, after a call that would have had to wait."""
        if self._loop is not loop():
            self._loop = loop()
            self._loop.watch(self._socket.fileno(), self._wake)
        self._waiting = Sleep()
        return await settled(self._waiting, limit_s)

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.settle(True)

    async def wait_readable(self) -> None:
        """Wait, without a limit, until there is something to read or the connection has ended."""
        self._set_batch(1)
        while True:
            try:
                self._socket.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                await self._ready(None)
            else:
                return

    def has_ended(self) -> bool:
        """Check whether the peer has closed the connection; bytes that are still to be read say that it has not."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def shutdown(self) -> None:
        """Wake the coroutine that reads or writes here; bytes that have arrived can still be read."""
        self._ended = True
        with contextlib.suppress(OSError):  # the peer was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._wake()

    def detach(self) -> socket.socket:
        """Return the socket, non-blocking; the caller uses and closes it."""
        self._forget()
        return self._socket

    def close(self) -> None:
        self._forget()
        self._socket.close()

    def _forget(self) -> None:
        if self._loop is not None:
            self._loop.forget(self._socket.fileno())
            self._loop = None


def unconnected(address: tuple[str, int], slice_s: float) -> tuple[FrameSocket, Any]:
    """Return a socket for this address, and the argument of its `connect`. Raises OSError."""
    family, kind, protocol, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    return FrameSocket(socket.socket(family, kind, protocol), slice_s), where


async def handshake(link: FrameSocket, hello: bytes, patience_s: float) -> None:
    """Send the client's hello and read the reply. Raises ConnectionRefusedError unless it is WELCOME."""
    await link.write(hello, memoryview(b""), patience_s)
    answer = (await link.read(1, patience_s))[0]
    if answer != wire.HelloReply.WELCOME:
        reason = wire.REFUSALS.get(wire.HelloReply(answer)) if answer in wire.HelloReply.__members__.values() else None
        raise ConnectionRefusedError(reason or f"its answer to our hello was {answer}, which means nothing")
