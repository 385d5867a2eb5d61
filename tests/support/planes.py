"""Planes for the tests: several in one process on 127.0.0.1, and connections that speak the protocol by hand."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from dsgd.engines.dist.io_thread import SLICES_PER_WAIT, IoThread
from dsgd.engines.dist.pairwise import attach as attaching
from dsgd.engines.dist.pairwise import frame_socket
from dsgd.engines.dist.pairwise.plane import Plane, Unreachable
from dsgd.engines.dist.pairwise.process_memory import ProcessMemory
from dsgd.engines.dist.pairwise.wire import HelloReply, PlaneSettings

T = TypeVar("T")
HOST = "127.0.0.1"
TOKEN = b"the token of the tests"
LIMIT_S = 60.0  # guards against hanging; nothing here comes near it


@dataclass
class Log:
    lines: list[str] = field(default_factory=list)

    def __call__(self, line: str) -> None:
        self.lines.append(line)


def plane(rank: int, nodes: int, dimension: int = 8, timeout_s: float = LIMIT_S, patience_s: float = LIMIT_S,
          log: Callable[[str], None] | None = None, dtype: torch.dtype = torch.float64,
          attach: bool = False) -> Plane:  # fmt: skip
    return Plane(rank, nodes, HOST, TOKEN, dimension, dtype, timeout_s, patience_s, log or Log(), attach=attach)


@contextlib.contextmanager
def planes(nodes: int, dimension: int = 8, **options: float) -> Iterator[list[Plane]]:
    """So many connected planes, each of which has published its own rank at step 0."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(plane(rank, nodes, dimension, **options)) for rank in range(nodes)]  # pyright: ignore[reportArgumentType]
        for rank, each in enumerate(made):
            each.publish(constant(rank, dimension), 0)
            each.connect([(HOST, other.port) for other in made])
        yield made


def constant(value: float, length: int = 8) -> Tensor:
    return torch.full((length,), float(value), dtype=torch.float64)


def value(vector: Tensor) -> float:
    """The value of a vector that must be constant."""
    assert bool((vector == vector[0]).all()), f"torn: {vector.unique()}"
    return float(vector[0])


def settings_of(nodes: int, dimension: int = 8) -> PlaneSettings:
    return PlaneSettings(TOKEN, nodes, dimension, torch.float64)


class FrameSocket:
    """A frame socket whose methods run their coroutines to the end."""

    def __init__(self, sock: socket.socket, slice_s: float) -> None:
        self._link = frame_socket.FrameSocket(sock, slice_s)
        self._socket = sock
        sock.setblocking(True)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that uses the link; at other times the socket is a plain, blocking one."""
        self._socket.setblocking(False)
        thread = IoThread("test")
        try:
            return thread.run(coroutine)
        finally:
            thread.close()
            self._socket.setblocking(True)

    @property
    def memory(self) -> ProcessMemory | None:
        return self._link.memory

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **named: self.run(getattr(self._link, name)(*arguments, **named))

    def shutdown(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._link.close()


def attach(link: FrameSocket, settings: PlaneSettings, patience_s: float) -> None:
    link.run(attaching.attach(link._link, settings, patience_s))


def by_hand(to: Plane, own_rank: int, asked: int, nodes: int, dimension: int = 8) -> tuple[socket.socket, FrameSocket]:
    """A connection that has been let in and now sends whatever the test likes."""
    sock = socket.create_connection((HOST, to.port))
    link = FrameSocket(sock, LIMIT_S / SLICES_PER_WAIT)
    hello = settings_of(nodes, dimension).encode_hello(own_rank, asked)
    link.run(frame_socket.handshake(link._link, hello, LIMIT_S))
    return sock, link


def failure(future: Future[Any]) -> Unreachable:
    error = future.exception(LIMIT_S)
    assert isinstance(error, Unreachable), error
    return error


@contextlib.contextmanager
def impostor(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on the port it yields that greets every connection and then does as it is told."""
    with socket.create_server((HOST, 0)) as listening:
        over = threading.Event()

        def work() -> None:
            while True:
                sock, _ = listening.accept()
                with sock:
                    if over.is_set():
                        return
                    with contextlib.suppress(OSError):
                        sock.recv(64, socket.MSG_WAITALL)
                        sock.sendall(bytes([HelloReply.WELCOME]))
                        behave(sock)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            over.set()
            socket.create_connection((HOST, listening.getsockname()[1])).close()
            thread.join(LIMIT_S)


def until(condition: Callable[[], bool]) -> None:
    """Sleep for what must come true."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dsgd")]


def serves(plane: Plane, rank: int) -> bool:
    """Whether a plane serves a connection of this rank."""
    return rank in plane._listener._tasks


def open_sockets() -> int:
    count = 0
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{entry}").startswith("socket:")
    return count
