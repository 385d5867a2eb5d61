"""What the plane as a whole promises: checks, counters, its end, and real processes that stop or die."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch

from dsgd.engines.dist.pairwise.plane import Plane
from tests.support.planes import (
    HOST,
    LIMIT_S,
    constant,
    failure,
    impostor,
    open_sockets,
    own_threads,
    plane,
    planes,
    until,
    value,
)
from tests.support.rings import child


def test_what_is_no_vector_of_the_run_is_refused_before_it_is_sent() -> None:
    long = torch.zeros(33, dtype=torch.float64)
    with planes(2) as (a, _):
        for wrong in (torch.zeros(8), long, long[:8].reshape(8, 1), long[::2]):
            for attempt in (
                partial(a.publish, wrong, 0),
                partial(a.push, 1, wrong, 0),
                partial(a.exchange, {1: wrong}, 0, []),
                partial(a.call, 1, "add", wrong, ()),
            ):
                with pytest.raises(
                    ValueError, match=r"^a vector must be contiguous torch\.float64 on the CPU with at most 32 numbers"
                ):
                    attempt()


def test_a_peer_that_does_not_exist_is_refused() -> None:
    with planes(2) as (a, _):
        for peer in (0, 2, -1):
            with pytest.raises(ValueError, match=f"got {peer} on rank 0"):
                a.pull(peer)


def test_bytes_are_those_of_the_vectors_that_left_and_came_and_nothing_else() -> None:
    with planes(2) as (a, b):
        b.serve(lambda rank, name, part, scalars: (constant(0, 3), 0))
        b.pull(0).result(LIMIT_S)  # 64 bytes of a
        a.push(1, constant(1, 5), 0).result(LIMIT_S)  # 40 of a
        a.exchange({1: constant(1, 2)}, 0, []).result(LIMIT_S)  # 16 of a
        a.call(1, "fetch", constant(1, 1), (1.0, 2.0)).result(LIMIT_S)  # 8 of a, 24 of b
        a.call(1, "fetch", None, ()).result(LIMIT_S)  # 24 of b
        until(lambda: (a.bytes_sent, b.bytes_sent) == (128, 48))
        until(lambda: (a.bytes_received, b.bytes_received) == (48, 128))


def test_close_leaves_no_thread_and_no_socket_and_fails_what_is_pending() -> None:
    assert own_threads() == []
    before = open_sockets()
    with (
        planes(3, patience_s=10.0) as (a, b, c),
        impostor(lambda sock: (sock.recv(1000), sock.recv(1), None)[2]) as port,
    ):
        for asker in (a, b, c):
            for peer in {0, 1, 2} - {[a, b, c].index(asker)}:
                asker.pull(peer).result(LIMIT_S)
        a.connect([None, (HOST, port), (HOST, c.port)])
        pending = [a.pull(1), a.push(1, constant(1), 0), a.exchange({2: constant(1)}, 0, [2])]
        assert not any(future.cancel() for future in pending)
        a.close()
        assert {failure(future).reason for future in pending} == {"the plane was closed here"}
        assert failure(a.pull(2)).reason == "the plane was closed here"
        assert failure(a.exchange({2: constant(1)}, 0, [2])).rank == 2
        a.close()
    assert own_threads() == []
    assert open_sockets() == before


# real processes


def publish_and_wait(parent_port: int, told: int) -> None:
    """Publish ones, as rank 1 of two, and wait."""
    own = plane(1, 2)
    own.publish(constant(1), 0)
    own.connect([(HOST, parent_port), None])
    os.write(told, f"{own.port}\n".encode())
    signal.pause()


@contextmanager
def child_of(parent: Plane) -> Iterator[int]:
    """Yield another process, rank 1 of two."""
    hear, tell = os.pipe()
    pid = child(lambda: publish_and_wait(parent.port, tell))
    try:
        with os.fdopen(hear) as told:
            parent.connect([None, (HOST, int(told.readline()))])
        yield pid
    finally:
        os.close(tell)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_stopped_process_is_unreachable_until_it_goes_on() -> None:
    with plane(0, 2, patience_s=0.5) as own, child_of(own) as pid:
        own.publish(constant(0), 0)
        until(lambda: own.pull(1).exception(LIMIT_S) is None)
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)  # until it has stopped: the signal alone is only on its way
        assert failure(own.pull(1)).reason == "no byte for 0.5 s"
        for _ in range(100):  # on the back-off: these do not wait
            assert own.pull(1).done()
        os.kill(pid, signal.SIGCONT)
        until(lambda: own.pull(1).exception(LIMIT_S) is None)


def test_a_killed_process_fails_what_waits_for_it_at_once() -> None:
    with plane(0, 2) as own, child_of(own) as pid:
        own.publish(constant(0), 0)
        assert value(own.pull(1).result(LIMIT_S).vector) == 1
        waiting = own.exchange({1: constant(0)}, 0, [1])
        os.kill(pid, signal.SIGKILL)
        assert failure(waiting).rank == 1
        assert failure(own.pull(1)).rank == 1
