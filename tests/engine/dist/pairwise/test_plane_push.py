"""What a push promises: vectors in the inbox, in order, or a busy peer."""

from __future__ import annotations

from dsgd.engines.dist.pairwise.wire import HEADER, Kind
from tests.support.planes import (
    LIMIT_S,
    by_hand,
    constant,
    planes,
)


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
