"""Who shows the token is let in, however late this process comes to look, and however many others are at the door."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dsgd.engines.dist import admission
from dsgd.engines.dist.admission import MAX_STRANGERS, Admission

GREETING = b"a greeting of the tests"
PATIENCE_S = 60.0


class Door:
    """An admission whose rounds are taken one by one. offences: all that were reported."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.address: tuple[str, int] = self.listener.getsockname()
        self.selector = selectors.DefaultSelector()
        self.offences: list[str] = []
        self.admission = Admission(
            self.listener, self.selector, len(GREETING), lambda offence, _: self.offences.append(offence)
        )

    def look(self) -> set[object]:
        """What the selector finds readable within a moment."""
        return {key.fileobj for key, _ in self.selector.select(0.05)}

    def process(self, ready: set[object]) -> int:
        """Take a round with what was readable at some time; returns how many were let in."""
        complete = self.admission.process(ready)
        for sock, _, greeting in complete:
            assert greeting == GREETING
            sock.close()
        return len(complete)

    def rounds(self, wanted: int) -> int:
        """Take rounds until so many have been let in."""
        found, deadline = 0, time.monotonic() + PATIENCE_S
        while found < wanted:
            assert time.monotonic() < deadline, f"{found} of {wanted} were let in: {set(self.offences)}"
            found += self.process(self.look())
        return found

    def accept(self, count: int) -> None:
        """Take so many rounds in which nothing but a newcomer was seen."""
        for _ in range(count):
            assert self.listener in self.look()
            assert self.process({self.listener}) == 0

    def close(self) -> None:
        self.admission.close()
        self.selector.close()


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.close()


def arrived(sock: socket.socket) -> None:
    """Wait until what was sent on a connection of this machine lies in the other end."""
    deadline = time.monotonic() + PATIENCE_S
    outgoing = f"{sock.getsockname()[1]:04X}"
    while True:
        with open("/proc/net/tcp") as table:
            rows = [line.split() for line in table if line.split()[1].endswith(f":{outgoing}")]
        if rows and all(row[4].startswith("00000000:") for row in rows):
            return
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_greeting_that_lies_in_the_socket_is_read_however_late(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process was stopped after it had looked: the greeting came meanwhile, and all of its time went by."""
    monkeypatch.setattr(admission, "STRANGER_S", 0.2)
    with socket.create_connection(door.address) as member:
        door.accept(1)
        member.sendall(GREETING)
        arrived(member)
        time.sleep(0.5)
        assert door.process(set()) == 1
    assert door.offences == []


def test_a_greeting_that_lies_in_the_socket_is_read_before_its_owner_makes_room(door: Door) -> None:
    with ExitStack() as stack:
        member = stack.enter_context(socket.create_connection(door.address))
        for _ in range(MAX_STRANGERS):
            stack.enter_context(socket.create_connection(door.address))
        door.accept(MAX_STRANGERS)
        member.sendall(GREETING)
        arrived(member)
        assert door.process({door.listener}) == 1
    assert door.offences == []


def test_time_in_which_nobody_listens_counts_against_nobody(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends were stopped, as with a whole machine: the greeting comes after that."""
    monkeypatch.setattr(admission, "STRANGER_S", 2 * admission.ROUND_S)
    with socket.create_connection(door.address) as member:
        door.accept(1)
        time.sleep(3 * admission.ROUND_S)
        assert door.process(set()) == 0
        member.sendall(GREETING)
        arrived(member)
        assert door.process(set()) == 0
        assert door.rounds(1) == 1
    assert door.offences == []


def test_who_says_nothing_is_dropped_after_its_time(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "STRANGER_S", 0.2)
    with socket.create_connection(door.address) as stranger:
        stranger.sendall(GREETING[:-1])
        deadline = time.monotonic() + PATIENCE_S
        while not door.offences:
            assert time.monotonic() < deadline
            assert door.process(door.look()) == 0
        assert stranger.recv(1) == b""
    assert door.offences == ["a connection showed no token in time"]
    assert door.admission.wait_s() is None


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Leave this process so many unused file descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, limits[1]))
        with contextlib.suppress(OSError):  # none is left
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(count):
            os.close(opened.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in opened:
            os.close(each)


def test_strangers_give_their_descriptors_to_who_comes_after_them(door: Door) -> None:
    """Without a word they would hold the last descriptors for as long as they may be silent."""
    with ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(socket.create_connection(door.address))
        members = [stack.enter_context(socket.create_connection(door.address)) for _ in range(3)]
        for member in members:
            member.sendall(GREETING)
            arrived(member)
        with descriptors_left(4):
            assert door.rounds(3) == 3
    assert set(door.offences) == {
        "a connection could not be accepted (Too many open files)",
        "a connection without a token gave its place to others",
    }


def test_without_a_descriptor_nobody_is_let_in_until_there_is_one(door: Door) -> None:
    """And the others of the same loop go on meanwhile: the listener is not looked at for a moment."""
    with ExitStack() as stack:
        near, far = socket.socketpair()
        stack.enter_context(near)
        stack.enter_context(far)
        door.selector.register(near, selectors.EVENT_READ)
        member = stack.enter_context(socket.create_connection(door.address))
        member.sendall(GREETING)
        arrived(member)
        with descriptors_left(0):
            door.process(door.look())
            assert door.offences == ["a connection could not be accepted (Too many open files)"]
            assert door.listener.fileno() not in door.selector.get_map()
            far.send(b"x")
            assert door.look() == {near}
            near.recv(1)
            wait_s = door.admission.wait_s()
            assert wait_s is not None
        assert door.rounds(1) == 1
