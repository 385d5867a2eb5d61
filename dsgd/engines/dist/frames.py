"""The bytes of a message between the coordinator and another process: JSON, with vectors behind it.

A frame is, little endian: bytes of JSON (4), bytes of vectors (8), the JSON, the vectors. `vectors` in the JSON lists
their names, types and lengths. Nothing is ever unpickled, and no memory is allocated for a vector before its length has
been compared with the receiver's limit.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from msgspec import Meta, Struct, ValidationError, convert
from torch import Tensor

from dsgd.record.safe_text import for_terminal

FRAME = struct.Struct("<IQ")
TEXT_LIMIT = 1 << 20
DTYPES = {"float32": torch.float32, "float64": torch.float64}
SPANS = ("computing", "communicating")  # names of vectors of intervals, (begin, end) each, with `trace`

Message = dict[str, Any]
Listed = tuple[str, torch.dtype, int]  # name, type and length of a vector
Empty = Callable[[int, torch.dtype], Tensor]


class Announcement(Struct, frozen=True):
    """The fields that every message may have. vectors: name, type and length of each that follows."""

    kind: str
    vectors: tuple[tuple[str, str, Annotated[int, Meta(ge=0)]], ...] = ()


class BadFrame(Exception):
    """A frame that the protocol does not allow; later bytes cannot be decoded."""


@dataclass(frozen=True)
class VectorLimit:
    """The limits of the vectors of one message. vectors: number of vectors. numbers: numbers of each. nbytes: total
    bytes without the spans. spans: numbers of each of SPANS, 0 without spans."""

    vectors: int = 0
    numbers: int = 0
    nbytes: int = 0
    spans: int = 0

    @property
    def total_bytes(self) -> int:
        return self.nbytes + len(SPANS) * self.spans * torch.float64.itemsize

    def check(self, announced: Sequence[Listed]) -> None:
        """Raise BadFrame if these vectors are too many or too long."""
        spans = [vector for vector in announced if self.spans and vector[0] in SPANS]
        others = [vector for vector in announced if vector not in spans]
        if len(others) > self.vectors or sum(dtype.itemsize * length for _, dtype, length in others) > self.nbytes:
            raise BadFrame("a message had more vectors than it may")
        if any(length > self.numbers for _, _, length in others) or any(length > self.spans for *_, length in spans):
            raise BadFrame("a message had a longer vector than it may")


NO_VECTORS = VectorLimit()


def printable(text: str, limit: int) -> str:
    """Return another process's text in a form that is safe for a terminal, at most `limit` characters."""
    return for_terminal(text[:limit])[:limit]


def in_memory(length: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(length, dtype=dtype)


def vector_list(vectors: Mapping[str, Tensor]) -> list[Listed]:
    return [(name, vector.dtype, vector.numel()) for name, vector in vectors.items()]


def encode_frame(message: Mapping[str, Any], vectors: Mapping[str, Tensor]) -> list[memoryview]:
    """Return the parts of a frame. The vectors must be contiguous and on the CPU; they are not copied."""
    names = [[name, str(dtype).removeprefix("torch."), length] for name, dtype, length in vector_list(vectors)]
    text = json.dumps({**message, "vectors": names} if names else message).encode()
    parts = rooms(vectors)
    return [memoryview(FRAME.pack(len(text), sum(map(len, parts))) + text), *parts]


def decode_header(header: memoryview, limit: VectorLimit) -> tuple[int, int]:
    """Return the bytes of JSON and the bytes of vectors that follow. Raises BadFrame beyond the limits."""
    text_bytes, vectors_bytes = FRAME.unpack(header)
    if not 0 < text_bytes <= TEXT_LIMIT or vectors_bytes > limit.total_bytes:
        raise BadFrame("a message had no possible length")
    return text_bytes, vectors_bytes


def decode_text(
    text: memoryview, vectors_bytes: int, limit: VectorLimit, empty: Empty = in_memory
) -> tuple[Message, dict[str, Tensor]]:
    """Return the message and its vectors, whose contents follow: in order, into `rooms`. empty: makes a vector of a
    length and type.

    Raises BadFrame before memory is allocated for them."""
    try:
        message = json.loads(bytes(text))
        announced = [(name, DTYPES[dtype], length) for name, dtype, length in convert(message, Announcement).vectors]
        message.pop("vectors", None)
    except (ValueError, KeyError, RecursionError, ValidationError) as error:
        raise BadFrame("a message was not readable") from error
    if sum(dtype.itemsize * length for _, dtype, length in announced) != vectors_bytes:
        raise BadFrame("a message was not readable")
    limit.check(announced)
    vectors = {name: empty(length, dtype) for name, dtype, length in announced}
    if len(vectors) != len(announced):
        raise BadFrame("a message named two vectors alike")
    return message, vectors


def rooms(vectors: Mapping[str, Tensor]) -> list[memoryview]:
    """Return the memory of vectors as bytes; empty vectors have none."""
    return [vector.numpy().data.cast("B") for vector in vectors.values() if vector.numel()]
