"""The coordinator's port, and strangers on it: they cost a line in the log and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from dsgd.engines.dist.admission import MAX_STRANGERS
from dsgd.engines.dist.control import CONTROL_MAGIC, CoordinatorConnection, CoordinatorGone, Hub, HubEvent
from dsgd.engines.dist.frames import FRAME, TEXT_LIMIT
from tests.support.any_message import AnyMessage
from tests.support.long import long_but
from tests.support.prefork import Prefork
from tests.support.proc import LOOPBACK, listening, open_files
from tests.support.watched_run import ALGORITHMS, LONG, results, start, undisturbed

TOKEN = bytes(range(32))
DEADLINE_S = 60.0


class Served:
    """A hub that is polled by a thread, as the coordinator does, and answers every message with the same one."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = listener.getsockname()
        self.log: list[str] = []
        self.events: list[HubEvent] = []
        self._hub = Hub(listener, TOKEN, self.log.append, AnyMessage())
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ending.is_set():
            for event in self._hub.poll(0.01):
                self.events.append(event)
                client, message, _ = event
                if message is not None:
                    self._hub.send(client, message)
        self._hub.close()

    def answers(self) -> bool:
        """Does who knows the token still get answers?"""
        line = CoordinatorConnection(self.address, TOKEN, DEADLINE_S)
        line.send({"kind": "greeting"})
        line.send({"kind": "question"}, {"x": torch.arange(3.0)})
        answered = [line.receive()["kind"] for _ in range(2)] == ["greeting", "question"]
        line.socket.close()
        return answered

    def close(self) -> None:
        self._ending.set()
        self._thread.join(DEADLINE_S)


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


def vectors(text: str) -> bytes:
    """A message that says this of its 8 bytes of vectors, behind one that lets its sender send any."""
    greeting, message = b'{"kind": "hi"}', f'{{"kind": "hi", "vectors": {text}}}'.encode()
    return FRAME.pack(len(greeting), 0) + greeting + FRAME.pack(len(message), 8) + message + bytes(8)


def is_dropped(connection: socket.socket) -> bool:
    connection.settimeout(DEADLINE_S)
    try:
        while connection.recv(1000):
            pass
        return True
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "content", [bytes(100), b"GET / HTTP/1.1\r\nHost: coordinator.example\r\n\r\n", CONTROL_MAGIC + bytes(32)]
)
def test_who_shows_a_wrong_token_is_dropped_and_unheard(served: Served, content: bytes) -> None:
    for _ in range(20):
        with socket.create_connection(served.address) as stranger:
            stranger.sendall(content)
            assert is_dropped(stranger)
    assert served.events == []
    assert served.log == ["control: a connection showed a wrong token, from 127.0.0.1; such connections are dropped"]
    assert served.answers()


def test_half_a_token_then_the_end_goes_unnoticed(served: Served) -> None:
    with socket.create_connection(served.address) as stranger:
        stranger.sendall(CONTROL_MAGIC + TOKEN[:10])
    assert served.answers()
    assert served.log == []


@pytest.mark.long
def test_idle_connections_are_bounded_and_dropped(served: Served) -> None:
    with ExitStack() as stack:
        strangers = [stack.enter_context(socket.create_connection(served.address)) for _ in range(1000)]
        assert all(is_dropped(stranger) for stranger in strangers[: 1000 - MAX_STRANGERS])
        assert served.answers()
        assert all(is_dropped(stranger) for stranger in strangers)  # the others after a while
    assert sorted(line.split(",")[0] for line in served.log) == [
        "control: a connection showed no token in time",
        "control: too many connections without a token",
    ]


@pytest.mark.parametrize("lengths", [(TEXT_LIMIT + 1, 0), (2, 1), (2, (1 << 64) - 1), (0, 0)])
def test_a_message_beyond_the_limits_ends_the_connection(served: Served, lengths: tuple[int, int]) -> None:
    for _ in range(3):
        with socket.create_connection(served.address) as client:
            client.sendall(CONTROL_MAGIC + TOKEN + FRAME.pack(*lengths) + bytes(1000))
            assert is_dropped(client)
    assert served.answers()
    assert [line.split(",")[0] for line in served.log] == ["control: a message had no possible length"]


@pytest.mark.parametrize(
    "content",
    [
        FRAME.pack(5, 0) + b"{abc}",
        FRAME.pack(2, 0) + b"\xff\xff",
        FRAME.pack(2, 0) + b"[]",
        FRAME.pack(2, 0) + b"{}",
        FRAME.pack(13, 0) + b'{"kind": "hi"',
        FRAME.pack(11, 0) + b'{"kind": 1}',
        FRAME.pack(100_000, 0) + b"[" * 100_000,
        FRAME.pack(500_000, 0) + b'{"a":' * 100_000,
        FRAME.pack(100_000, 0) + b"1" * 100_000,
        *(vectors(text) for text in (
            '[["x", "int3", 1]]', '[["x", "float64", 2]]', '[["x", "float64", -1], ["y", "float64", 2]]', "[5]", "5",
            '[["x", "float64", true]]', '[["x", "float64", 1.0]]', '[[5, "float64", 1]]', '[["x", "float64"]]',
            '[["x", ["float64"], 1]]', '[["x", "float32", 1], ["x", "float32", 1]]', "null", "{}", "[]",
            '[["x", "float64", 1e400]]', '[["x", "float64", 100000000000000000000000]]',
        )),
    ],
)  # fmt: skip
def test_a_message_that_is_none_ends_the_connection(served: Served, content: bytes) -> None:
    with socket.create_connection(served.address) as client:
        client.sendall(CONTROL_MAGIC + TOKEN + content)
        assert is_dropped(client)
    assert served.answers()
    assert len(served.log) == 1


def test_a_client_hears_when_the_coordinator_is_gone(served: Served) -> None:
    line = CoordinatorConnection(served.address, TOKEN, DEADLINE_S)
    served.close()
    with pytest.raises(CoordinatorGone, match=r"^the coordinator is gone"):
        line.receive()
    line.socket.close()


@pytest.mark.parametrize("algo", long_but(["easgd"], ["sync", "dpsgd", "easgd"]))
def test_a_run_on_one_machine_cannot_be_reached_from_another(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    watched = start(prefork, tmp_path / "run", *ALGORITHMS[algo], "nodes=2", LONG)
    watched.wait_for_marks(2)
    hosts = [host for found, (host, _) in listening().items() if found in watched.sockets]
    assert hosts
    assert set(hosts) == {LOOPBACK}
    os.kill(watched.run.pid, signal.SIGINT)
    watched.assert_ends("interrupted", 130)


@pytest.mark.parametrize("algo", long_but(["easgd"], ["sync", "easgd"]))
def test_a_run_does_not_notice_strangers(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    options = (*ALGORITHMS[algo], "nodes=2")
    watched = start(prefork, tmp_path / "run", *options, LONG)
    files = open_files(watched.wait_for_marks(2)["coordinator"])
    ports = [port for found, (_, port) in listening().items() if found in files]
    with ExitStack() as stack:
        for port in ports:
            strangers = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(200)]
            for stranger in strangers[-MAX_STRANGERS // 2 :]:
                stranger.sendall(os.urandom(100))
        watched.wait_for_output("a wrong token")
        watched.wait_for_output("too many connections")
        watched.wait_for_more_marks()
        os.kill(watched.run.pid, signal.SIGINT)
        watched.assert_ends("interrupted", 130)
    told = [line for line in watched.run.err.splitlines() if line.startswith("control:")]
    assert len(told) == len(set(told)) <= 3  # on a slow machine some have shown no token in time
    if algo == "sync":
        budget = f"budget.steps={watched.run.marks[-1]['samples'] // 2}"
        expected = undisturbed(prefork, tmp_path / "undisturbed", *options, budget)
        assert results(watched.run.marks) == results(expected.run.marks)
