"""Whatever ends a sum over all workers ends it for all, and names the neighbour that is the reason."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from dsgd.engines.dist.pairwise.ring import CLOSED, RingBroken, SumRing
from tests.support.planes import LIMIT_S
from tests.support.rings import at_once, broken, child, reduce_all, rings, socketpairs, vectors_of


@pytest.mark.parametrize(
    ("nodes", "usual", "other", "words"),
    [
        (2, torch.ones(5), torch.ones(6), "6 numbers of torch.float32"),
        (3, torch.ones(5), torch.ones(5, dtype=torch.float64), "5 numbers of torch.float64"),
        (3, torch.ones(100_000), torch.ones(0), "0 numbers of torch.float32"),
    ],
)
def test_another_call_of_one_worker_is_an_error_of_all(nodes: int, usual: Tensor, other: Tensor, words: str) -> None:
    """Which says what was called instead, where it was noticed; and nothing goes on after it."""
    with rings(nodes) as made:
        vectors = [usual.clone() for _ in range(nodes - 1)] + [other.clone()]
        found = [
            broken(done) for done in at_once([partial(r.all_reduce, v) for r, v in zip(made, vectors, strict=True)])
        ]
        noticed = [error for error in found if "makes another call: all-reduce 0 of " in error.what]
        assert all(words in error.what for error in noticed)
        assert noticed if nodes > 2 else noticed == found
        assert all("\n" not in str(error) for error in found)
        for each in made:
            with pytest.raises(RingBroken):
                each.all_reduce(usual.clone())


def test_garbage_of_a_neighbour_is_an_error() -> None:
    for garbage in (b"\0" * 24, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
        (left, right), (others_left, others_right) = socketpairs(2)
        with others_left, others_right, contextlib.closing(SumRing(0, 2, left, right, LIMIT_S)) as ours:
            others_right.sendall(garbage)
            with pytest.raises(RingBroken, match=r"^worker 1 sent what is no all-reduce$"):
                ours.all_reduce(torch.ones(1000))


@pytest.mark.parametrize(("nodes", "length"), [(2, 3), (3, 2_000_000), (4, 3)])
def test_a_neighbour_that_has_gone_is_named_by_one_next_to_it_and_all_fail(nodes: int, length: int) -> None:
    with rings(nodes) as made:
        reduce_all(made, vectors_of(nodes, length, torch.float32))
        made[-1].close()
        calls = [partial(r.all_reduce, torch.ones(length)) for r in made[:-1]]
        found = [broken(done) for done in at_once(calls)]
    gone = nodes - 1
    assert all(error.what == CLOSED for error in found)
    assert any(error.peer == gone for error in (found[0], found[-1]))


def test_a_closed_ring_has_ended_for_its_neighbours_even_where_a_fork_holds_its_sockets() -> None:
    (left, right), others = socketpairs(2)
    with left.dup(), right.dup(), others[0], others[1]:
        SumRing(0, 2, left, right, LIMIT_S).close()
        for other in others:
            other.settimeout(LIMIT_S)
            assert other.recv(1) == b""


@contextlib.contextmanager
def pair_of_processes(timeout_s: float, length: int) -> Iterator[tuple[SumRing, int]]:
    """A ring whose other worker is a process of its own, which sums ones again and again, and its process id."""
    (left, right), (others_left, others_right) = socketpairs(2)

    def other() -> None:
        left.close()
        right.close()
        ring = SumRing(1, 2, others_left, others_right, LIMIT_S)
        while True:
            ring.all_reduce(torch.ones(length))

    pid = child(other)
    others_left.close()
    others_right.close()
    try:
        with contextlib.closing(SumRing(0, 2, left, right, timeout_s)) as ours:
            yield ours, pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def sum_often(ring: SumRing, length: int) -> None:
    """The other worker may have been ahead by one sum."""
    for _ in range(100):
        ring.all_reduce(torch.ones(length))


@pytest.mark.parametrize("length", [100, 1_000_000])
def test_a_killed_neighbour_is_noticed_at_once(length: int) -> None:
    with pair_of_processes(LIMIT_S, length) as (ours, pid):
        ours.all_reduce(torch.ones(length))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RingBroken, match=f"^worker 1 {CLOSED}$"):
            sum_often(ours, length)


def test_a_neighbour_that_is_stopped_for_longer_than_the_limit_is_an_error() -> None:
    length = 1_000_000
    with pair_of_processes(0.4, length) as (ours, pid):
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(RingBroken, match=r"^worker 1 sent no byte for 0\.4 s$") as caught:
            sum_often(ours, length)
        assert caught.value.peer == 1


def test_a_neighbour_that_is_stopped_for_less_is_waited_for() -> None:
    v = torch.ones(1_000_000)
    with pair_of_processes(LIMIT_S, len(v)) as (ours, pid):
        for _ in range(3):
            os.kill(pid, signal.SIGSTOP)
            timer = threading.Timer(0.3, os.kill, (pid, signal.SIGCONT))
            timer.start()
            for _ in range(3):
                v.fill_(1)
                ours.all_reduce(v)
                assert bool((v == 2).all())
            timer.join()


def test_whoever_was_stopped_itself_blames_nobody_for_it() -> None:
    """The other worker answers after its first sum only; this one is stopped for longer than its limit."""
    (left, right), (others_left, others_right) = socketpairs(2)
    told, tell = os.pipe()

    def stopped() -> None:
        others_left.close()
        others_right.close()
        ring = SumRing(0, 2, left, right, 2.0)
        ring.all_reduce(torch.ones(10))
        os.write(tell, b"x")
        ring.all_reduce(torch.ones(10))
        os.write(tell, b"y")

    pid = child(stopped)
    left.close()
    right.close()
    try:
        with contextlib.closing(SumRing(1, 2, others_left, others_right, LIMIT_S)) as other:
            other.all_reduce(torch.ones(10))
            assert os.read(told, 1) == b"x"
            os.kill(pid, signal.SIGSTOP)
            signal.sigtimedwait([], 2.5)
            os.kill(pid, signal.SIGCONT)
            other.all_reduce(torch.ones(10))
            assert os.read(told, 1) == b"y"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(told)
        os.close(tell)
