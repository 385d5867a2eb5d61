"""What a call promises: operations one at a time, with answer, staleness or error."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch import Tensor

from tests.support.planes import (
    HOST,
    LIMIT_S,
    constant,
    failure,
    plane,
    planes,
    value,
)


def test_calls_of_all_workers_are_atomic_and_answered_with_their_staleness() -> None:
    """A read, a pause and a write: two at once would lose a count."""
    count = constant(0, 4)

    def operation(rank: int, name: str, part: Tensor | None, scalars: tuple[float, ...]) -> tuple[Tensor | None, int]:
        assert part is not None
        assert (name, scalars) == ("add", (2.0, -0.5))
        before = count.clone()
        time.sleep(0.0005)
        count.copy_(before + part)
        return count.clone(), rank

    with planes(4) as all_planes:
        all_planes[3].serve(operation)
        calls = [(r, all_planes[r].call(3, "add", constant(1, 4), (2.0, -0.5))) for _ in range(20) for r in range(3)]
        answers = []
        for rank, future in calls:
            answer, staleness = future.result(LIMIT_S)
            assert answer is not None
            assert staleness == rank
            answers.append(value(answer))
        assert sorted(answers) == list(range(1, 61))


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


def test_a_server_that_dies_fails_the_calls_that_wait() -> None:
    entered, leave = threading.Event(), threading.Event()

    def operation(rank: int, name: str, part: Tensor | None, scalars: tuple[float, ...]) -> tuple[Tensor | None, int]:
        entered.set()
        leave.wait(LIMIT_S)
        return None, 0

    with plane(0, 2) as a:
        b = plane(1, 2, patience_s=0.1)
        b.serve(operation)
        a.connect([None, (HOST, b.port)])
        waiting = a.call(1, "wait", None, ())
        assert entered.wait(LIMIT_S)
        b.close()
        assert failure(waiting).rank == 1
        leave.set()
