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
from dsgd.engines.dist.control import CONTROL_MAGIC, CoordinatorConnection, Hub, HubEvent
from dsgd.engines.dist.frames import FRAME, TEXT_LIMIT
from tests.support.any_message import AnyMessage
from tests.support.prefork import Prefork
from tests.support.proc import LOOPBACK, listening, open_files
from tests.support.watched_run import FREE_RUNNING, LONG, start

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


def test_who_shows_a_wrong_token_is_dropped_and_unheard(served: Served) -> None:
    http = b"GET / HTTP/1.1\r\nHost: coordinator.example\r\n\r\n"
    for content in (bytes(100), http, CONTROL_MAGIC + bytes(32)) * 7:
        with socket.create_connection(served.address) as stranger:
            stranger.sendall(content)
            assert is_dropped(stranger)
    assert served.events == []
    assert served.log == ["control: a connection showed a wrong token, from 127.0.0.1; such connections are dropped"]
    assert served.answers()


def test_a_message_beyond_the_limits_ends_the_connection(served: Served) -> None:
    for lengths in ((TEXT_LIMIT + 1, 0), (2, 1), (2, (1 << 64) - 1), (0, 0)):
        with socket.create_connection(served.address) as client:
            client.sendall(CONTROL_MAGIC + TOKEN + FRAME.pack(*lengths) + bytes(1000))
            assert is_dropped(client)
    assert served.answers()
    assert [line.split(",")[0] for line in served.log] == ["control: a message had no possible length"]


def test_a_message_that_is_none_ends_the_connection(served: Served) -> None:
    deep = (b"[" * 100_000, b'{"a":' * 100_000, b"1" * 100_000)
    texts = (b"{abc}", b"\xff\xff", b"[]", b"{}", b'{"kind": "hi"', b'{"kind": 1}', *deep)
    lists = (
        '[["x", "int3", 1]]', '[["x", "float64", 2]]', '[["x", "float64", -1], ["y", "float64", 2]]', "[5]", "5",
        '[["x", "float64", true]]', '[["x", "float64", 1.0]]', '[[5, "float64", 1]]', '[["x", "float64"]]',
        '[["x", ["float64"], 1]]', '[["x", "float32", 1], ["x", "float32", 1]]', "null", "{}", "[]",
        '[["x", "float64", 1e400]]', '[["x", "float64", 100000000000000000000000]]',
    )  # fmt: skip
    for content in (*(FRAME.pack(len(text), 0) + text for text in texts), *map(vectors, lists)):
        with socket.create_connection(served.address) as client:
            client.sendall(CONTROL_MAGIC + TOKEN + content)
            assert is_dropped(client), content[:80]
    assert served.answers()
    assert len(served.log) == len(set(served.log))


def test_a_run_has_a_port_for_each_process_and_does_not_notice_strangers_there(
    prefork: Prefork, tmp_path: Path
) -> None:
    """The coordinator, workers and servers listen, on this machine only; the command does not."""
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING["easgd"], "nodes=2", LONG)
    processes = watched.wait_for_marks(2) | {"command": watched.run.pid}
    bound = listening()
    found = {name: [bound[file] for file in open_files(pid) if file in bound] for name, pid in processes.items()}
    serving = {name for name in found if name.split()[0] in ("coordinator", "worker", "server")}
    assert len(serving) == 4
    assert {name: len(of) for name, of in found.items()} == {name: int(name in serving) for name in found}
    assert {host for of in found.values() for host, _ in of} == {LOOPBACK}
    with ExitStack() as stack:
        for name in serving:
            address = ("127.0.0.1", found[name][0][1])
            strangers = [stack.enter_context(socket.create_connection(address)) for _ in range(2 * MAX_STRANGERS)]
            for stranger in strangers[-MAX_STRANGERS // 2 :]:
                stranger.sendall(os.urandom(100))
        watched.wait_for_output("a wrong token")
        watched.wait_for_output("too many connections")
        watched.wait_for_more_marks()
        os.kill(watched.run.pid, signal.SIGINT)
        watched.assert_ends("interrupted", 130)
    told = [line for line in watched.run.err.splitlines() if line.startswith("control:")]
    assert len(told) == len(set(told)) <= 3  # on a slow machine some have shown no token in time
    assert (watched.run.summary["workers_lost"], watched.run.summary["messages_lost"]) == (0, 0)
