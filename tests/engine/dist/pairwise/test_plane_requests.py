"""What pushes, asks and calls promise beside the vectors of `test_plane_fuzz.py`: who is busy, fails or gives up."""

from __future__ import annotations

import socket
import threading

import pytest
import torch
from torch import Tensor

from dsgd.engines.dist.pairwise.wire import HEADER, Frame, Kind
from tests.support.planes import HOST, LIMIT_S, by_hand, constant, failure, plane, planes, until, value


def test_a_full_inbox_is_busy_until_it_is_emptied() -> None:
    with planes(2) as (a, b):
        assert [a.push(1, constant(i), i).result(LIMIT_S) for i in range(6)] == [True] * 4 + [False] * 2
        assert [steps for _, _, steps in b.inbox()] == [0, 1, 2, 3]
        assert a.push(1, constant(9), 9).result(LIMIT_S)
        assert [steps for _, _, steps in b.inbox()] == [9]


def test_a_sender_that_dies_in_the_midst_of_a_vector_takes_no_place_in_the_inbox() -> None:
    with planes(2) as (a, b):
        for _ in range(6):
            sock, link = by_hand(b, own_rank=0, asked=1, nodes=2)
            link.write(HEADER.pack(Kind.PUSH, 0, 0, 0, 0, 0, 64) + bytes(10), memoryview(b""), LIMIT_S)
            sock.close()
        assert [a.push(1, constant(i), i).result(LIMIT_S) for i in range(4)] == [True] * 4


def test_an_ask_brings_the_answer_its_steps_and_the_steps_by_now() -> None:
    with planes(2) as (a, b):
        b.set_steps(9)
        b.answer_with(lambda v, limit_s: (v * 2, 8))
        answered = a.ask(1, constant(3), 5).result(LIMIT_S)
        assert (value(answered.vector), answered.steps, answered.peer_steps) == (6, 8, 9)


def test_who_has_no_answer_is_no_dead_node() -> None:
    """Before it can answer at all, and where it has none in time, which is half of what the asking one would wait."""
    limits: list[float] = []

    def answer(v: Tensor, limit_s: float) -> None:
        limits.append(limit_s)

    with planes(2) as (a, b):
        assert failure(a.ask(1, constant(1), 0)).reason == "it is busy"
        b.answer_with(answer)
        assert failure(a.ask(1, constant(1), 0)).rank == 1
        assert limits == [LIMIT_S / 2]
        assert value(a.pull(1).result(LIMIT_S).vector) == 1


def test_a_question_is_not_answered_whose_sender_has_given_up() -> None:
    """It would be half an average. The second one is read after the connection was closed behind it."""
    asked: list[float] = []
    begun, over = threading.Event(), threading.Event()

    def answer(v: Tensor, limit_s: float) -> tuple[Tensor, int]:
        asked.append(value(v))
        begun.set()
        assert over.wait(LIMIT_S)
        return v, 0

    with planes(2) as (_, b):
        b.answer_with(answer)
        sock, link = by_hand(b, own_rank=0, asked=1, nodes=2)
        for number in range(2):
            link.send(Frame(Kind.ASK), constant(number), LIMIT_S)
        assert begun.wait(LIMIT_S)
        sock.shutdown(socket.SHUT_WR)
        over.set()
        until(lambda: b._listener.received(0) == 0)  # its thread has ended
        assert asked == [0]
        sock.close()


def test_a_call_may_carry_and_bring_nothing() -> None:
    with planes(2) as (a, b):
        b.serve(lambda rank, name, part, scalars: (part, len(scalars)))
        assert a.call(1, "", None, ()).result(LIMIT_S) == (None, 0)
        answer, staleness = a.call(1, "x" * 32, constant(1, 0), tuple(range(16))).result(LIMIT_S)
        assert answer is not None
        assert (len(answer), staleness) == (0, 16)


def test_an_operation_that_raises_is_the_caller_s_error_and_the_server_goes_on() -> None:
    lines: list[str] = []

    def operation(rank: int, name: str, part: Tensor | None, scalars: tuple[float, ...]) -> tuple[Tensor | None, int]:
        if name == "wrong":
            return torch.zeros(33, dtype=torch.float64), 0
        return constant(scalars[0], 2), 0

    with plane(0, 2) as a, plane(1, 2, log=lines.append) as b:
        a.connect([None, (HOST, b.port)])
        with pytest.raises(RuntimeError, match=r"worker 1 serves no operations"):
            a.call(1, "early", None, ()).result(LIMIT_S)
        b.serve(operation)
        with pytest.raises(RuntimeError, match=r"^fetch: IndexError: tuple index out of range$"):
            a.call(1, "fetch", None, ()).result(LIMIT_S)
        with pytest.raises(RuntimeError, match=r"at most 32 numbers"):
            a.call(1, "wrong", None, ()).result(LIMIT_S)
        answer, _ = a.call(1, "fetch", None, (4.0,)).result(LIMIT_S)
        assert answer is not None
        assert value(answer) == 4
    assert len(lines) == 3
