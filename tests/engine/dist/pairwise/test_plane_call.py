"""What a call promises beside one operation at a time, which `test_plane_fuzz.py` has: nothing, or an error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.planes import (
    HOST,
    LIMIT_S,
    constant,
    plane,
    planes,
    value,
)


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
