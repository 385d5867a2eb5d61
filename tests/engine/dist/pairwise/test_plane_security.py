"""Whoever can reach the port of a plane cannot disturb the run without its token, nor bring it down with it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

import pytest
import torch

from dsgd.engines.dist.pairwise.plane import Plane
from dsgd.engines.dist.pairwise.wire import HEADER, HELLO, Frame, HelloReply, Kind, PlaneSettings
from tests.support.planes import (
    HOST,
    LIMIT_S,
    TOKEN,
    Log,
    by_hand,
    constant,
    own_threads,
    plane,
    serves,
    settings_of,
    until,
    value,
)

OTHER_JOB = PlaneSettings(b"another job's token", 3, 8, torch.float64)


@contextlib.contextmanager
def pair() -> Iterator[tuple[Plane, Plane, Log]]:
    """Rank 0, rank 1 of three, and the log of rank 1, which has published ones."""
    log = Log()
    with plane(0, 3) as a, plane(1, 3, log=log) as b:
        b.publish(constant(1), 0)
        a.connect([None, (HOST, b.port), None])
        yield a, b, log


def healthy(a: Plane) -> bool:
    return value(a.pull(1).result(LIMIT_S).vector) == 1 and a.push(1, constant(2), 0).result(LIMIT_S) in (True, False)


def said(to: Plane, data: bytes) -> bytes:
    """What a plane answers to `data` before it closes the connection."""
    with socket.create_connection((HOST, to.port), LIMIT_S) as sock:
        answer = b""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            sock.sendall(data)
            while piece := sock.recv(100):
                answer += piece
        return answer


def test_it_listens_on_its_own_address_only() -> None:
    with pair() as (_, b, _), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", b.port), LIMIT_S)


def test_who_is_not_of_the_run_is_turned_away_and_mentioned_once() -> None:
    """`test_wire.py` has all that a hello may get wrong."""
    for hello, answer, line in (
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"\0" * 64, b"", "began with garbage"),
        (os.urandom(100_000), b"", "began with garbage"),
        (OTHER_JOB.encode_hello(0, 1), bytes([HelloReply.WRONG_TOKEN]), "wrong token"),
        (PlaneSettings(TOKEN, 3, 9, torch.float64).encode_hello(0, 1), bytes([HelloReply.OTHER_RUN]), "other run"),
        (settings_of(3).encode_hello(1, 1), bytes([HelloReply.OTHER_RANK]), "other rank"),
    ):
        with pair() as (a, b, log):
            for _ in range(20):
                assert said(b, hello) == answer
            assert healthy(a)
            assert len(log.lines) == 1
            assert line in log.lines[0]


def test_half_a_hello_and_an_end_is_mentioned_once() -> None:
    with pair() as (a, b, log):
        for length in (0, 1, HELLO.size - 1) * 4:
            with socket.create_connection((HOST, b.port)) as sock:
                sock.sendall(settings_of(3).encode_hello(0, 1)[:length])
        until(lambda: bool(log.lines))
        assert healthy(a)
        assert len(log.lines) == 1


VIOLATIONS = [
    HEADER.pack(Kind.PUSH, 0, 0, 0, 0, 0, 264) + bytes(264),
    HEADER.pack(Kind.PUSH, 0, 0, 0, 0, 0, 1 << 62),
    HEADER.pack(Kind.PUSH, 0, 0, 0, 0, 0, 7) + bytes(7),
    HEADER.pack(Kind.PUSH, 0, 0, 0, 0, 0, -1),
    HEADER.pack(Kind.EXCHANGE, 0, 0, 0, 0, 0, -1),
    HEADER.pack(Kind.ASK, 0, 0, 0, 0, 0, -1),
    HEADER.pack(Kind.PULL, 0, 0, 0, 0, 0, 8) + bytes(8),
    HEADER.pack(Kind.PULL, 1, 0, 0, 0, 0, -1),
    HEADER.pack(Kind.CALL, 0, 255, 0, 0, 0, -1) + bytes(2040),
    HEADER.pack(Kind.CALL, 0, 0, 255, 0, 0, -1) + bytes(255),
    HEADER.pack(Kind.CALL, 3, 0, 0, 0, 0, 1000) + bytes(1000),
    HEADER.pack(Kind.CALL, 0, 0, 1, 0, 0, -1) + b"\xff",
    HEADER.pack(200, 0, 0, 0, 0, 0, -1),
    struct.pack("<32s", b"\xff" * 32),
]


def test_a_node_that_breaks_the_protocol_is_disconnected_and_mentioned() -> None:
    for data in VIOLATIONS:
        with pair() as (a, b, log):
            for _ in range(2):
                sock, _ = by_hand(b, own_rank=2, asked=1, nodes=3)
                with sock, contextlib.suppress(ConnectionResetError):
                    sock.sendall(data)
                    assert sock.recv(1) == b""
            assert healthy(a)
            assert len(log.lines) == 1
            assert log.lines[0].startswith("worker 2 was disconnected: it sent ")


def test_half_a_message_and_then_silence_costs_a_connection_until_the_time_limit() -> None:
    log = Log()
    with plane(0, 2, timeout_s=0.3, patience_s=0.3, log=log) as own:
        sock, _ = by_hand(own, own_rank=1, asked=0, nodes=2)
        with sock:
            sock.sendall(HEADER.pack(Kind.PUSH, 0, 0, 0, 0, 0, 64) + bytes(10))
            assert sock.recv(1) == b""
        until(lambda: not serves(own, 1))
    assert log.lines == ["worker 1 was disconnected: it fell silent in the middle of a message (reported once)"]


def test_a_node_has_one_connection_and_no_thread_however_often_it_connects() -> None:
    with pair() as (a, b, _), contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(by_hand(b, own_rank=2, asked=1, nodes=3)[0])
        sock, link = by_hand(b, own_rank=2, asked=1, nodes=3)
        stack.enter_context(sock)
        link.send(Frame(Kind.PING), None, LIMIT_S)  # the last of them is served
        assert link.receive(settings_of(3), LIMIT_S).kind == Kind.PING
        assert serves(b, 2)
        assert own_threads().count("dsgd plane") == 2
        assert healthy(a)


def test_a_vector_that_runs_ahead_too_far_is_not_read() -> None:
    """Memory is bounded: what no exchange here has asked for yet stays in the sender."""
    with pair() as (a, b, _):
        sock, link = by_hand(b, own_rank=2, asked=1, nodes=3)
        with sock:
            link.send(Frame(Kind.EXCHANGE, sequence=1000), constant(1), LIMIT_S)
            link.send(Frame(Kind.EXCHANGE, sequence=0), constant(5), LIMIT_S)
            until(lambda: serves(b, 2))  # b knows no address to ping it at
            waiting = b.exchange({}, 0, [2])
            assert healthy(a)
            assert not waiting.done()


def test_an_impostor_who_does_not_know_the_token_is_refused_with_a_reason() -> None:
    with plane(0, 2) as own, Plane(1, 2, HOST, b"x" * 16, 8, torch.float64, LIMIT_S, LIMIT_S, Log()) as other:
        own.connect([None, (HOST, other.port)])
        error = own.pull(1).exception(LIMIT_S)
        assert str(error) == "worker 1 cannot be reached: it expects another job's token"


def test_a_token_is_in_no_line_of_the_log_and_in_no_error() -> None:
    with pair() as (_, b, log):
        said(b, PlaneSettings(b"a secret of another job!", 3, 8, torch.float64).encode_hello(0, 1))
        said(b, settings_of(4).encode_hello(0, 1))
        assert log.lines
        assert not any("secret" in line or TOKEN.decode() in line for line in log.lines)
