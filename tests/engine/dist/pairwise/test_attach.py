"""Large vectors that are read in the memory of the other process: agreed on in the open, whole, or not delivered."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
import torch

from dsgd.engines.dist.pairwise import wire
from dsgd.engines.dist.pairwise.plane import Plane
from dsgd.engines.dist.pairwise.process_memory import ProcessMemory, Secret
from dsgd.engines.dist.pairwise.wire import ADDRESS, HEADER, READ, RELEASED, UNREADABLE, Frame, Kind, Status
from tests.support.planes import (
    HOST,
    LIMIT_S,
    FrameSocket,
    Log,
    attach,
    by_hand,
    constant,
    failure,
    plane,
    planes,
    settings_of,
    until,
    value,
)
from tests.support.rings import child

LARGE = wire.LEAST_BYTES // 8  # numbers of double precision
NOTHING = memoryview(b"")


def memory_of(plane: Plane, peer: int) -> ProcessMemory | None:
    link = plane._channels[peer]._link
    assert link is not None
    return link.memory


def everything(a: Plane, b: Plane) -> list[float]:
    """A vector in each kind of message, from a to b and back."""
    b.serve(lambda rank, name, part, scalars: (constant(4, LARGE), 0))
    b.publish(constant(1, LARGE), 0)
    found = [value(a.pull(1).result(LIMIT_S).vector)]
    assert a.push(1, constant(2, LARGE), 0).result(LIMIT_S)
    found += [value(vector) for vector, _, _ in b.inbox()]
    theirs = b.exchange({0: constant(3, LARGE)}, 0, [0])
    found.append(value(a.exchange({1: constant(30, LARGE)}, 0, [1]).result(LIMIT_S)[1]))
    found.append(value(theirs.result(LIMIT_S)[0]))
    answer, _ = a.call(1, "move", constant(5, LARGE), ()).result(LIMIT_S)
    assert answer is not None
    return [*found, value(answer)]


@pytest.mark.parametrize("attaching", [(True, True), (True, False), (False, True)])
def test_vectors_are_the_same_and_count_the_same(attaching: tuple[bool, bool]) -> None:
    """Where both sides want it, and where one does not."""
    a, b = (plane(rank, 2, LARGE, attach=wanted) for rank, wanted in enumerate(attaching))
    with a, b:
        for own in (a, b):
            own.connect([(HOST, a.port), (HOST, b.port)])
        assert everything(a, b) == [1, 2, 3, 30, 4]
        assert (memory_of(a, 1) is not None) is all(attaching)
        until(lambda: (a.bytes_sent, b.bytes_sent) == (3 * 8 * LARGE, 3 * 8 * LARGE))
        until(lambda: (a.bytes_received, b.bytes_received) == (3 * 8 * LARGE, 3 * 8 * LARGE))


def test_a_full_inbox_drops_a_vector_without_reading_it() -> None:
    with planes(2, LARGE, attach=True) as (a, b):
        x = constant(1, LARGE)
        pushed = [a.push(1, x, 0).result(LIMIT_S) for _ in range(5)]
        assert pushed == [True] * 4 + [False]
        assert len(b.inbox()) == 4
        assert a.push(1, x, 0).result(LIMIT_S)


def test_who_may_not_read_gets_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that forbids it, or beside a process of somebody else."""

    def forbidden(memory: ProcessMemory, view: memoryview, address: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(ProcessMemory, "read_into", forbidden)
    with planes(2, LARGE, attach=True) as (a, b):
        assert everything(a, b) == [1, 2, 3, 30, 4]
        assert memory_of(a, 1) is None


def test_another_process_than_the_one_with_the_secret_is_not_read() -> None:
    secret = Secret()
    assert ProcessMemory(os.getpid()).shows(secret.text, secret.address)
    assert not ProcessMemory(os.getpid()).shows(Secret().text, secret.address)
    for pid in (os.getppid(), 2**31 - 1, -1, 2**62):
        assert not ProcessMemory(pid).shows(secret.text, secret.address)
        with plane(0, 2, attach=True) as own:
            sock, link = by_hand(own, 1, 0, 2)
            with sock:
                link.send(Frame(Kind.ATTACH, steps=pid, sequence=secret.address, name=secret.text), None, LIMIT_S)
                assert link.receive(settings_of(2), LIMIT_S).status == Status.NOTHING


@contextmanager
def attached_by_hand(to: Plane) -> Iterator[FrameSocket]:
    sock, link = by_hand(to, 1, 0, 2, LARGE)
    with sock:
        attach(link, settings_of(2, LARGE), LIMIT_S)
        assert link.memory is not None
        yield link


def push_address(link: FrameSocket, address: int) -> None:
    header = HEADER.pack(Kind.PUSH, 0, 0, 0, 0, 0, 8 * LARGE)
    link.write(header + ADDRESS.pack(address), NOTHING, LIMIT_S)


def test_a_vector_whose_owner_gives_up_is_never_delivered() -> None:
    """It may have changed while it was read."""
    x = constant(7, LARGE)
    with plane(0, 2, LARGE, attach=True) as own:
        with attached_by_hand(own) as link:
            push_address(link, x.data_ptr())
            assert link.read(1, LIMIT_S) == READ
        with attached_by_hand(own) as link:  # served when the one before has ended
            push_address(link, x.data_ptr())
            assert link.read(1, LIMIT_S) == READ
            link.write(RELEASED, NOTHING, LIMIT_S)
            assert link.receive(settings_of(2, LARGE), LIMIT_S).status == Status.OK
            assert [value(vector) for vector, _, _ in own.inbox()] == [7]


def test_memory_that_is_not_there_is_asked_for_in_bytes_and_a_wrong_sign_ends_the_connection() -> None:
    log, vector = Log(), constant(1, LARGE)
    with plane(0, 2, LARGE, attach=True, log=log) as own:
        with attached_by_hand(own) as link:
            push_address(link, 8)
            assert link.read(1, LIMIT_S) == UNREADABLE
        assert own.inbox() == []
        with attached_by_hand(own) as link:
            push_address(link, vector.data_ptr())
            assert link.read(1, LIMIT_S) == READ
            link.write(b"?", NOTHING, LIMIT_S)
            with pytest.raises(ConnectionResetError):
                link.read(1, LIMIT_S)
        by_bytes = f"large vectors of process {os.getpid()} come as bytes: they cannot be read where they are"
        assert log.lines == [
            by_bytes,
            "worker 1 was disconnected: it sent b'?' where a vector is read in place, not b'\\x07' (reported once)",
        ]


def publish_for_ever(parent_port: int, told: int) -> None:
    """Publish one constant vector after the other, as rank 1 of two."""
    own = plane(1, 2, LARGE, attach=True)
    own.connect([(HOST, parent_port), None])
    own.publish(constant(0, LARGE), 0)
    os.write(told, f"{own.port}\n".encode())
    for steps in count(1):
        own.publish(constant(steps, LARGE), steps)


@contextmanager
def restless(parent: Plane) -> Iterator[int]:
    """Yield another process, which publishes as it can."""
    hear, tell = os.pipe()
    pid = child(lambda: publish_for_ever(parent.port, tell))
    try:
        with os.fdopen(hear) as told:
            parent.connect([None, (HOST, int(told.readline()))])
        yield pid
    finally:
        os.close(tell)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_between_processes_no_vector_is_torn_while_new_ones_are_published() -> None:
    with plane(0, 2, LARGE, attach=True) as own, restless(own):
        pulled = [own.pull(1).result(LIMIT_S) for _ in range(100)]
        assert memory_of(own, 1) is not None
        assert all(value(each.vector) == each.steps for each in pulled)
        assert pulled[-1].steps > pulled[0].steps


def test_a_stopped_owner_is_read_no_further_than_its_word_and_answers_again_later() -> None:
    with plane(0, 2, LARGE, patience_s=0.5, attach=True) as own, restless(own) as pid:
        assert value(own.pull(1).result(LIMIT_S).vector) >= 0
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)  # until it has stopped: the signal alone is only on its way
        assert failure(own.pull(1)).reason == "no byte for 0.5 s"
        os.kill(pid, signal.SIGCONT)
        until(lambda: own.pull(1).exception(LIMIT_S) is None)
        assert memory_of(own, 1) is not None


def test_memory_that_cannot_be_read_is_sent_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As page-locked memory of NVIDIA's drivers before 545, which the kernel refuses with EFAULT."""
    monkeypatch.setattr("dsgd.engines.dist.pairwise.wire.PIECE_BYTES", wire.LEAST_BYTES // 3)
    asked, read = list[int](), ProcessMemory.read_into

    def refused(memory: ProcessMemory, view: memoryview, address: int) -> None:
        if len(view) < 1000:  # a secret
            return read(memory, view, address)
        asked.append(address)
        if len(asked) > 1:  # the first piece can be read
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        read(memory, view, address)

    monkeypatch.setattr(ProcessMemory, "read_into", refused)
    with planes(2, LARGE, attach=True) as (a, b):
        for steps in range(3):
            x = torch.arange(LARGE, dtype=torch.float64) + steps
            b.publish(x, steps)
            assert torch.equal(a.pull(1).result(LIMIT_S).vector, x)
            assert a.push(1, x, 0).result(LIMIT_S)
            assert torch.equal(b.inbox()[0][0], x)
    assert len(asked) == 3  # two for the first vector of b, one for that of a, none later
