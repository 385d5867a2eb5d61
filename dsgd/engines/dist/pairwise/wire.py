"""Define the bytes that two nodes send each other.

A connection opens with a hello of HELLO.size bytes from the client, answered by one byte, a HelloReply. After that both
sides send frames: a header of HEADER.size bytes, the operation's name, the scalars as float64, then the numbers of at
most one vector as they lie in memory. Everything is little endian, so such a host is required. A client asks and the
server answers with a frame of the same kind; an EXCHANGE alone has no answer.

A client whose first frame is ATTACH asks whether both sides can read the other's memory (attach.py), and says in a last
ATTACH whether it can. If so, a vector of LEAST_BYTES or more is not sent: its address follows the frame. The reader
answers one byte READ for each PIECE_BYTES that it has read, and the owner of the vector answers RELEASED at the end. If
the system does not let it read this memory, for example of old NVIDIA drivers, it answers UNREADABLE. Then the numbers
follow, from that piece on, and all later vectors of this owner are sent.

A hello with another purpose than REQUESTS opens a place in a ring instead (ring.py): no frames follow, but for every
all-reduce RING_HEADER and the numbers.
"""

from __future__ import annotations

import enum
import hmac
import struct
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

PLANE_MAGIC, VERSION = b"dsgd", 5
# magic, version, dtype, token bytes, token, rank, the rank asked, nodes, d, purpose
HELLO = struct.Struct("<4sHBB32sIIIQI")
REQUESTS, RINGS = 0, (1, 2)  # purposes of a connection: requests, or a ring with this number
RING_MAGIC = b"ring"
RING_HEADER = struct.Struct("<4sB3xQQ")  # magic, dtype, number of earlier all-reduces, numbers
HEADER = struct.Struct("<BBBB4xqqq")  # kind, status, scalars, name bytes, steps, sequence, payload bytes (-1: none)
DTYPE_CODES = {torch.float16: 1, torch.bfloat16: 2, torch.float32: 3, torch.float64: 4}
LEAST_BYTES = 1 << 20  # smallest vector that is read in place: a smaller one fits into a socket's buffers
PIECE_BYTES = 1 << 26  # after which its reader shows that it continues
ADDRESS = struct.Struct("<Q")
READ, RELEASED, UNREADABLE = b"\x06", b"\x07", b"\x08"
MAX_SCALARS, MAX_NAME_BYTES, MAX_TEXT_BYTES = 16, 32, 1000


class Kind(enum.IntEnum):
    PING = 1  # is the peer alive?
    PULL = 2  # answer: steps when the vector was published; sequence: steps of the peer now
    PUSH = 3  # steps of the sender; answer OK or BUSY
    EXCHANGE = 4  # steps of the sender; sequence number of the exchange, counted per pair
    CALL = 5  # name and scalars; answer: steps: the staleness
    ATTACH = 6  # steps: the number of the sender's process; name: its secret; sequence: where that is; NOTHING: cannot
    ASK = 7  # steps of the sender; answer: steps and sequence as of a pull; NOTHING: the peer is busy


class Status(enum.IntEnum):
    OK = 0
    BUSY = 1  # the inbox is full, the vector was dropped
    NOTHING = 2  # no vector to send: the kind says why
    FAILED = 3  # the operation raised; the payload is the error's text in UTF-8


class HelloReply(enum.IntEnum):
    WELCOME = 1
    WRONG_TOKEN = 2
    OTHER_RUN = 3
    OTHER_RANK = 4
    NO_PLACE = 5


REFUSALS = {
    HelloReply.WRONG_TOKEN: "it expects another job's token",
    HelloReply.OTHER_RUN: "it runs with another version, number of nodes, dimension or dtype",
    HelloReply.OTHER_RANK: "another rank answers at its address",
    HelloReply.NO_PLACE: "its place in the ring is taken, or was not meant for us",
}


class ProtocolViolation(Exception):
    """The peer sent bytes that the protocol does not allow; later bytes cannot be decoded."""


@dataclass(frozen=True, slots=True)
class PlaneSettings:
    """Settings that must be equal in all nodes of a run. nodes: workers and servers. dimension: d."""

    token: bytes
    nodes: int
    dimension: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        if not 16 <= len(self.token) <= 32:
            raise ValueError(f"token must have 16 to 32 bytes, got {len(self.token)}")
        if self.dtype not in DTYPE_CODES:
            raise ValueError(f"dtype must be one of {', '.join(map(str, DTYPE_CODES))}, got {self.dtype}")
        if sys.byteorder != "little":
            raise ValueError(f"vectors are sent as little endian, but this host is {sys.byteorder} endian")

    @property
    def longest(self) -> int:
        """Return the numbers of the longest vector that may be sent: values with their indices, and a few scalars."""
        return 2 * self.dimension + MAX_SCALARS

    def check_vector(self, vector: Tensor) -> None:
        """Raise ValueError if the vector cannot be sent: it must be contiguous, of this dtype, on the CPU, and not
        longer than `longest`."""
        right = vector.ndim == 1 and vector.dtype == self.dtype and vector.device.type == "cpu"
        if not right or len(vector) > self.longest or not vector.is_contiguous():
            raise ValueError(
                f"a vector must be contiguous {self.dtype} on the CPU with at most {self.longest} numbers, "
                f"got {vector.dtype} on {vector.device} of shape {tuple(vector.shape)}, strides {vector.stride()}"
            )

    def encode_hello(self, rank: int, asked: int, purpose: int = REQUESTS) -> bytes:
        """Return the hello of `rank` to the rank that it asks for."""
        token, code = self.token, DTYPE_CODES[self.dtype]
        return HELLO.pack(
            PLANE_MAGIC, VERSION, code, len(token), token, rank, asked, self.nodes, self.dimension, purpose
        )

    def check_hello(self, hello: bytes, own_rank: int) -> tuple[HelloReply | None, int, int]:
        """Return the reply to HELLO.size bytes, the sender's rank and its purpose; None, 0, 0 if they are not a hello.
        Only the left neighbour has a place in a ring."""
        magic, version, code, length, token, rank, asked, nodes, dimension, purpose = HELLO.unpack(hello)
        if magic != PLANE_MAGIC:
            return None, 0, 0
        same = hmac.compare_digest(bytes([length]) + token, bytes([len(self.token)]) + self.token.ljust(32, b"\0"))
        if not same:
            return HelloReply.WRONG_TOKEN, 0, 0
        if (version, nodes, dimension, code) != (VERSION, self.nodes, self.dimension, DTYPE_CODES[self.dtype]):
            return HelloReply.OTHER_RUN, 0, 0
        if asked != own_rank or rank >= nodes or rank == own_rank:
            return HelloReply.OTHER_RANK, 0, 0
        if purpose != REQUESTS and (purpose not in RINGS or (rank + 1) % nodes != own_rank):
            return HelloReply.NO_PLACE, 0, 0
        return HelloReply.WELCOME, rank, purpose


@dataclass(frozen=True, slots=True)
class Frame:
    """One message without its vector. `Kind` defines steps and sequence. payload: bytes of the vector, or -1."""

    kind: Kind
    status: Status = Status.OK
    steps: int = 0
    sequence: int = 0
    name: str = ""
    scalars: tuple[float, ...] = ()
    payload: int = -1


def as_bytes(vector: Tensor) -> memoryview:
    """Return the memory of a contiguous CPU vector, as bytes."""
    return vector.detach().view(torch.uint8).numpy().data
