"""What goes over the wire between two nodes, and sockets that are read and written with patience.

A connection opens with a hello of HELLO.size bytes from the client, answered by one byte, a Greeting. After that both
sides send frames: a header of HEADER.size bytes, the operation's name, the scalars as float64, then the numbers of at
most one vector as they lie in memory. Everything is little endian, so such a host is required. A client asks and the
server answers with a frame of the same kind; an EXCHANGE alone has no answer.

Patience: a wait ends when no byte has moved for so long, however long the whole message takes. It is counted in slices
of sleep rather than by the clock, so a process that was itself stopped for an hour does not blame its peers for it.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import hmac
import os
import select
import socket
import struct
import sys
import termios
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MAGIC, VERSION = b"dsgd", 1
HELLO = struct.Struct("<4sHBB32sIIIQ4x")  # magic, version, dtype, token bytes, token, rank, the rank asked, nodes, d
HEADER = struct.Struct("<BBBB4xqqq")  # kind, status, scalars, name bytes, steps, second, payload bytes (-1: no vector)
DTYPES = {torch.float16: 1, torch.bfloat16: 2, torch.float32: 3, torch.float64: 4}
MAX_SCALARS, MAX_NAME_BYTES, MAX_TEXT_BYTES = 16, 32, 1000
SLICES = 8  # of patience; a wait ends at most one slice too early or too late


class Kind(enum.IntEnum):
    PING = 1  # are you there?
    PULL = 2  # answer: steps, when the vector was published; second, the steps by now
    PUSH = 3  # steps of the sender; answer OK or BUSY
    EXCHANGE = 4  # steps of the sender; second, the how manieth exchange of this pair
    CALL = 5  # name and scalars; answer: steps, the staleness


class Status(enum.IntEnum):
    OK = 0
    BUSY = 1  # the inbox is full, the vector was dropped
    NOTHING = 2  # nothing has been published yet
    FAILED = 3  # the operation raised; the payload is the error's text in UTF-8


class Greeting(enum.IntEnum):
    WELCOME = 1
    WRONG_TOKEN = 2
    OTHER_RUN = 3
    OTHER_RANK = 4


REFUSALS = {
    Greeting.WRONG_TOKEN: "it expects another job's token",
    Greeting.OTHER_RUN: "it runs with another version, number of nodes, dimension or dtype",
    Greeting.OTHER_RANK: "another rank answers at its address",
}


class Silent(Exception):
    """No byte has moved for as long as one is willing to wait."""


class Violation(Exception):
    """The peer sent what the protocol does not allow; nothing it sends after that can be understood."""


@dataclass(frozen=True, slots=True)
class Run:
    """What two nodes must agree about before they talk: the job's token, the nodes (workers and servers), d, dtype."""

    token: bytes
    nodes: int
    dimension: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        if not 16 <= len(self.token) <= 32:
            raise ValueError(f"token must have 16 to 32 bytes, got {len(self.token)}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(map(str, DTYPES))}, got {self.dtype}")
        if sys.byteorder != "little":
            raise ValueError(f"vectors are sent as little endian, but this host is {sys.byteorder} endian")

    def check(self, vector: Tensor) -> None:
        """Raise ValueError for what is no vector of this run."""
        right = vector.ndim == 1 and vector.dtype == self.dtype and vector.device.type == "cpu"
        if not right or len(vector) > self.dimension or not vector.is_contiguous():
            raise ValueError(
                f"a vector must be contiguous {self.dtype} on the CPU with at most {self.dimension} numbers, "
                f"got {vector.dtype} on {vector.device} of shape {tuple(vector.shape)}, strides {vector.stride()}"
            )

    def hello(self, rank: int, asked: int) -> bytes:
        token, code = self.token, DTYPES[self.dtype]
        return HELLO.pack(MAGIC, VERSION, code, len(token), token, rank, asked, self.nodes, self.dimension)

    def greet(self, hello: bytes, own_rank: int) -> tuple[Greeting | None, int]:
        """(the answer to a hello of HELLO.size bytes, the rank it came from); (None, 0) if it is no hello at all."""
        magic, version, code, length, token, rank, asked, nodes, dimension = HELLO.unpack(hello)
        if magic != MAGIC:
            return None, 0
        same = hmac.compare_digest(bytes([length]) + token, bytes([len(self.token)]) + self.token.ljust(32, b"\0"))
        if not same:
            return Greeting.WRONG_TOKEN, 0
        if (version, nodes, dimension, code) != (VERSION, self.nodes, self.dimension, DTYPES[self.dtype]):
            return Greeting.OTHER_RUN, 0
        if asked != own_rank or rank >= nodes or rank == own_rank:
            return Greeting.OTHER_RANK, 0
        return Greeting.WELCOME, rank


@dataclass(frozen=True, slots=True)
class Frame:
    """One message without its vector. payload: bytes of the vector, or -1 where there is none."""

    kind: Kind
    status: Status = Status.OK
    steps: int = 0
    second: int = 0
    name: str = ""
    scalars: tuple[float, ...] = ()
    payload: int = -1


def octets(vector: Tensor) -> memoryview:
    """The memory of a contiguous CPU vector, as bytes."""
    return vector.detach().view(torch.uint8).numpy().data


def connect(address: tuple[str, int], patience_s: float, stopped: Callable[[], bool]) -> socket.socket:
    """A TCP connection. Raises OSError when it is refused, Silent after patience_s or when `stopped` says so."""
    family, kind, protocol, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        try:
            sock.connect(where)
        except BlockingIOError:
            waiting = select.poll()
            waiting.register(sock, select.POLLOUT)
            slice_s = min(patience_s / SLICES, 1.0)
            for _ in range(max(1, round(patience_s / slice_s))):
                if stopped():
                    raise Silent("it was no longer wanted") from None
                if waiting.poll(slice_s * 1e3):
                    break
            else:
                raise Silent(f"no connection for {patience_s:g} s") from None
            if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, os.strerror(code)) from None
        return sock
    except BaseException:
        sock.close()
        raise


class Link:
    """A connected socket that belongs to one reader and one writer at a time; `end` may be called by anyone."""

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
        self._closing = threading.Lock()  # nobody may end a socket whose number has been given to another file
        self._queued = 0  # bytes that the kernel still had to send or have acknowledged, at the last look
        self.received = 0  # bytes so far

    def send(self, frame: Frame, vector: Tensor | bytes | None, patience_s: float) -> None:
        """Send a frame and its vector (or the text of an error). Raises Silent and OSError."""
        payload = octets(vector) if isinstance(vector, Tensor) else vector
        length = -1 if payload is None else len(payload)
        name = frame.name.encode("ascii")
        head = HEADER.pack(
            frame.kind, frame.status, len(frame.scalars), len(name), frame.steps, frame.second, length
        ) + struct.pack(f"<{len(name)}s{len(frame.scalars)}d", name, *frame.scalars)
        self.write(head, memoryview(payload or b""), patience_s)

    def receive(self, run: Run, patience_s: float) -> Frame:
        """The next frame, up to its payload. Raises Violation, Silent, and ConnectionResetError at the end."""
        header = self.read(HEADER.size, patience_s)
        kind, status, scalars, length, steps, second, payload = HEADER.unpack(header)
        if kind not in Kind.__members__.values() or status not in Status.__members__.values():
            raise Violation(f"a frame of kind {kind} and status {status}, which do not exist")
        if scalars > MAX_SCALARS or length > MAX_NAME_BYTES:
            raise Violation(
                f"{scalars} scalars and a name of {length} bytes, at most {MAX_SCALARS} and {MAX_NAME_BYTES}"
            )
        limit, multiple = (
            (MAX_TEXT_BYTES, 1) if status == Status.FAILED else (run.dimension * run.dtype.itemsize, run.dtype.itemsize)
        )
        if not -1 <= payload <= limit or (payload > 0 and payload % multiple):
            raise Violation(f"a payload of {payload} bytes, at most {limit} and in items of {multiple}")
        body = self.read(length + 8 * scalars, patience_s)
        name, *numbers = struct.unpack(f"<{length}s{scalars}d", body)
        if not name.isascii():
            raise Violation("an operation whose name is not ASCII")
        return Frame(Kind(kind), Status(status), steps, second, name.decode("ascii"), tuple(numbers), payload)

    def read(self, count: int, patience_s: float) -> bytes:
        data = bytearray(count)
        self.read_into(memoryview(data), patience_s)
        return bytes(data)

    def read_into(self, view: memoryview, patience_s: float) -> None:
        """Fill `view`. Raises Silent, and ConnectionResetError when the peer ends before."""
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
        """Read so many bytes and drop them."""
        scratch = memoryview(bytearray(min(count, 1 << 16)))
        while count:
            piece = scratch[:count]
            self.read_into(piece, patience_s)
            count -= len(piece)

    def write(self, head: bytes, payload: memoryview, patience_s: float) -> None:
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
        """Seconds without progress, one more slice included. What the peer's kernel takes from ours is progress: on a
        slow link the last megabytes of a message are on their way long after they were written."""
        (queued,) = struct.unpack("@i", fcntl.ioctl(self._socket, termios.TIOCOUTQ, b"\0" * 4))
        moved, self._queued = queued < self._queued, queued
        waited_s = 0.0 if moved else waited_s + self._slice_s
        if waited_s >= patience_s:
            raise Silent(f"no byte for {patience_s:g} s")
        return waited_s

    def wait(self) -> None:
        """Sleep, for as long as it takes, until there is something to read or the connection has ended."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        waiting.poll()

    def end(self) -> None:
        """Wake whoever reads or writes here; what the peer has sent so far can still be read."""
        with self._closing, contextlib.suppress(OSError):  # the peer was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._closing:
            self._socket.close()


def greeted(link: Link, hello: bytes, patience_s: float) -> None:
    """The client's side of the hello. Raises ConnectionRefusedError when the server does not want us."""
    link.write(hello, memoryview(b""), patience_s)
    answer = link.read(1, patience_s)[0]
    if answer != Greeting.WELCOME:
        reason = REFUSALS.get(Greeting(answer)) if answer in Greeting.__members__.values() else None
        raise ConnectionRefusedError(reason or f"its answer to our hello was {answer}, which means nothing")
