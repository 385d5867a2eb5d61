"""What an ask promises: the peer's answer, made at one moment, or an error that names the peer."""

from __future__ import annotations

import socket
import threading

from torch import Tensor

from dsgd.engines.dist.pairwise.wire import Frame, Kind
from tests.support.planes import LIMIT_S, by_hand, constant, failure, planes, until, value


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
