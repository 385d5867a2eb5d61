"""Encode and decode control messages: one JSON object each, with vectors behind it.

A client opens its connection with CONTROL_MAGIC and the token, 36 bytes. Then each side sends frames, little endian:
bytes of JSON (4), bytes of vectors (8), the JSON, the vectors. `vectors` in the JSON lists their names, types and
lengths. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

CONTROL_MAGIC = b"dsgC"
FRAME = struct.Struct("<IQ")
TEXT_LIMIT = 1 << 20
VECTORS_LIMIT = 1 << 36
TEXT_ALIGNMENT = 64  # bytes; the JSON is padded to it, since vectors are used where they were received
DTYPES = {"float32": torch.float32, "float64": torch.float64}

Message = dict[str, Any]


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
            vectors[name] = (
                torch.frombuffer(body, dtype=dtype, count=length, offset=begin)
                if length
                else torch.empty(0, dtype=dtype)
            )
            begin += length * dtype.itemsize
    except (ValueError, TypeError, KeyError) as error:
        raise BadFrame("a message was not readable") from error
    if begin != len(body):
        raise BadFrame("a message was not readable")
    return message, vectors
