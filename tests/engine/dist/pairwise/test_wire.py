"""Frames, hellos, limits and patience, over real TCP connections."""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Iterator

import pytest
import torch

from dsgd.engines.dist.pairwise.wire import (
    DTYPE_CODES,
    HEADER,
    HELLO,
    PLANE_MAGIC,
    REQUESTS,
    VERSION,
    Frame,
    HelloReply,
    Kind,
    PlaneSettings,
    ProtocolViolation,
    Status,
    as_bytes,
)
from tests.support.planes import HOST, LIMIT_S, TOKEN, FrameSocket

SETTINGS = PlaneSettings(TOKEN, 4, 100, torch.float64)


@contextlib.contextmanager
def connection(slice_s: float = LIMIT_S) -> Iterator[tuple[socket.socket, FrameSocket]]:
    """A plain socket and the link at the other end."""
    with socket.create_server((HOST, 0)) as listening:
        plain = socket.create_connection(listening.getsockname())
        link = FrameSocket(listening.accept()[0], slice_s)
    with plain, contextlib.closing(link):
        yield plain, link


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_frame_and_its_vector_come_out_as_they_went_in(dtype: torch.dtype) -> None:
    settings = PlaneSettings(TOKEN, 4, 100, dtype)
    sent = Frame(Kind.CALL, Status.OK, -3, 2**62, "exchange", (0.1, -math.inf, 5e-324))
    with connection() as (plain, receiver):
        sender = FrameSocket(plain, LIMIT_S)
        for length in (None, 0, 1, 100):
            vector = None if length is None else torch.randn(length).to(dtype)
            sender.send(sent, vector, LIMIT_S)
            frame = receiver.receive(settings, LIMIT_S)
            size = -1 if length is None else length * dtype.itemsize
            assert frame == Frame(sent.kind, sent.status, sent.steps, sent.sequence, sent.name, sent.scalars, size)
            if vector is not None:
                received = torch.empty_like(vector)
                receiver.read_into(as_bytes(received), LIMIT_S)
                assert torch.equal(received, vector)


WRONG_HEADERS: list[tuple[tuple[int, ...], str]] = [
    ((0, 0, 0, 0, 0, 0, -1), "kind 0 and status 0"),
    ((99, 0, 0, 0, 0, 0, -1), "kind 99"),
    ((1, 77, 0, 0, 0, 0, -1), "status 77"),
    ((5, 0, 17, 0, 0, 0, -1), "17 scalars"),
    ((5, 0, 0, 33, 0, 0, -1), "name of 33 bytes"),
    ((3, 0, 0, 0, 0, 0, 1729), "1729 bytes, at most 1728"),
    ((3, 0, 0, 0, 0, 0, 1736), "1736 bytes, at most 1728"),
    ((3, 0, 0, 0, 0, 0, 2**63 - 1), "at most 1728"),
    ((3, 0, 0, 0, 0, 0, 12), "12 bytes, at most 1728 and in items of 8"),
    ((3, 0, 0, 0, 0, 0, -2), "payload of -2"),
    ((5, 3, 0, 0, 0, 0, 1001), "1001 bytes, at most 1000"),
]


def test_a_header_beyond_a_limit_is_a_violation() -> None:
    of_no_text = HEADER.pack(5, 0, 0, 2, 0, 0, -1) + "é".encode()
    for header, message in [
        *((HEADER.pack(*header), message) for header, message in WRONG_HEADERS),
        (of_no_text, "ASCII"),
    ]:
        with connection() as (plain, link):
            plain.sendall(header)
            with pytest.raises(ProtocolViolation, match=message):
                link.receive(SETTINGS, LIMIT_S)


def hello(**changes: object) -> bytes:
    fields = {
        "magic": PLANE_MAGIC,
        "version": VERSION,
        "dtype": DTYPE_CODES[torch.float64],
        "length": len(TOKEN),
        "token": TOKEN,
    }
    fields |= {"rank": 1, "asked": 2, "nodes": 4, "dimension": 100, "purpose": REQUESTS}
    return HELLO.pack(*(fields | changes).values())


HELLOS: list[tuple[dict[str, object], HelloReply | None]] = [
    ({}, HelloReply.WELCOME),
    ({"magic": b"GET "}, None),
    ({"token": b"the token of the tesTs"}, HelloReply.WRONG_TOKEN),
    ({"token": TOKEN + b"\1"}, HelloReply.WRONG_TOKEN),
    ({"length": len(TOKEN) + 1}, HelloReply.WRONG_TOKEN),
    ({"length": 0, "token": b""}, HelloReply.WRONG_TOKEN),
    ({"version": VERSION + 1}, HelloReply.OTHER_RUN),
    ({"nodes": 5}, HelloReply.OTHER_RUN),
    ({"dimension": 101}, HelloReply.OTHER_RUN),
    ({"dtype": DTYPE_CODES[torch.float32]}, HelloReply.OTHER_RUN),
    ({"rank": 4}, HelloReply.OTHER_RANK),
    ({"rank": 2}, HelloReply.OTHER_RANK),
    ({"asked": 3}, HelloReply.OTHER_RANK),
    ({"purpose": 1, "rank": 3}, HelloReply.NO_PLACE),
    ({"purpose": 3}, HelloReply.NO_PLACE),
    # who does not know the token learns nothing else about the run
    ({"token": b"", "nodes": 5}, HelloReply.WRONG_TOKEN),
]


def test_a_hello_is_welcome_only_if_all_of_it_agrees() -> None:
    for changes, reply in HELLOS:
        rank = 1 if reply == HelloReply.WELCOME else 0
        assert SETTINGS.check_hello(hello(**changes), own_rank=2) == (reply, rank, 0), changes


def test_a_run_makes_the_hello_that_it_welcomes() -> None:
    assert SETTINGS.encode_hello(rank=1, asked=2) == hello()
    assert SETTINGS.encode_hello(1, 2, 2) == hello(purpose=2)
    assert SETTINGS.check_hello(hello(purpose=2), own_rank=2) == (HelloReply.WELCOME, 1, 2)


def test_a_token_that_is_too_short_or_too_long_is_refused() -> None:
    for token in (b"", b"x" * 15, b"x" * 33):
        with pytest.raises(ValueError, match="token must have 16 to 32 bytes"):
            PlaneSettings(token, 2, 1, torch.float32)
