"""Ask processes for work ahead, and have each result put into a slot of shared memory.

The processes share one socket, so that an idle one takes each request. They end with the process that started them,
however that ends.
"""

from __future__ import annotations

import heapq
import json
import os
import select
import signal
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from dsgd.data import DataLost

MESSAGE_BYTES = 1 << 17  # of a request, at most: file names have at most 4,096
LOST_S = 10.0  # from closing the socket to the end of a process
LOOK_S = 0.5  # how often to look whether a process has died
# Signals that reach all processes of a job or terminal are for the parent to handle.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class PoolProcess(Protocol):
    """A process of a pool: what subprocess.Popen and `dsgd.host.fork.ForkedProcess` have in common."""

    pid: int
    returncode: Any

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class SlotRequest(Protocol):
    """A piece of work. slot: where its result goes, None before the request is sent."""

    slot: int | None


R = TypeVar("R", bound=SlotRequest)


class SlotPool(Generic[R]):
    """The processes of a pool, their slots, and the requests to them. To be used by one thread at a time, and not after
    a fork.

    kind: of processes, in errors. patience_s: for the next answer."""

    kind = ""
    patience_s = 0.0

    def __init__(self, processes: int, slots: int, start: Callable[[socket.socket], PoolProcess]) -> None:
        """start: starts a process, which is given its end of the socket."""
        self.owner = os.getpid()
        self._free = list(range(slots))  # the lowest are used again first: memory grows with what is needed at once
        self._waiting: deque[R] = deque()
        self._working: dict[int, R] = {}  # by slot
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setblocking(False)
        self.processes: list[PoolProcess] = []
        # ends the processes; also called when the pool is dropped, and at exit
        self.close = weakref.finalize(self, _end, self._link, self.processes, self.owner)
        with theirs:
            for _ in range(processes):
                self.processes.append(start(theirs))

    def _contents(self, item: R) -> dict[str, Any]:
        """Return what a request says besides its slot."""
        raise NotImplementedError

    def _answered(self, item: R, answer: dict[str, Any]) -> None:
        """Take in the answer to a request, whose slot is no longer worked on."""
        raise NotImplementedError

    def _send(self) -> None:
        """Send waiting requests, as far as there are slots and the socket takes them. Never blocks: the processes may
        be blocked until their answers are taken."""
        while self._waiting:
            item = self._waiting[0]
            if item.slot is None:
                if not self._free:
                    return
                item.slot = heapq.heappop(self._free)
            try:
                self._link.send(json.dumps({"slot": item.slot, **self._contents(item)}).encode())
            except BlockingIOError:
                return
            except ConnectionError:
                self._lost()
            self._working[item.slot] = self._waiting.popleft()

    def _receive(self, deadline: float) -> None:
        """Wait for answers for at most LOOK_S, and take all that are there. Raises DataLost if a process has died, or
        at the deadline."""
        self._send()
        readable, _, _ = select.select([self._link], [], [], LOOK_S)
        if not readable:
            self._look()
            if time.monotonic() > deadline:
                raise DataLost(
                    f"data: nothing from {len(self.processes)} {self.kind} processes for {self.patience_s:g} s"
                )
        while readable:
            try:
                message = self._link.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except ConnectionError:
                message = b""
            if not message:
                self._lost()
            answer = json.loads(message)
            self._answered(self._working.pop(answer["slot"]), answer)

    def _give_back(self, slot: int | None) -> None:
        if slot is not None:
            heapq.heappush(self._free, slot)
        self._send()

    def _look(self) -> None:
        """Raise DataLost if a process has died."""
        for process in self.processes:
            if (status := process.poll()) is not None:
                how = f"signal {-status}" if status < 0 else f"status {status}"
                raise DataLost(f"data: {self.kind} process {process.pid} ended by {how}")

    def _lost(self) -> NoReturn:
        """Raise DataLost: all processes have closed their side."""
        for process in self.processes:
            process.wait(LOST_S)
        self._look()
        raise AssertionError("unreachable: they have ended")


def answer_requests(link: socket.socket, parent: int, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests in a process of a pool, until the parent is gone. answer: does the work, returns what to say."""
    with link:
        link.settimeout(2 * LOOK_S)
        while os.getppid() == parent:
            try:
                message = link.recv(MESSAGE_BYTES)
            except TimeoutError:
                continue
            except ConnectionResetError:  # closed, with answers that were not taken
                return
            if not message:  # closed
                return
            request = json.loads(message)
            reply = json.dumps({"slot": request["slot"], **answer(request)}).encode()
            while os.getppid() == parent:
                try:
                    link.send(reply)
                    break
                except TimeoutError:
                    continue
                except OSError:  # closed
                    return


def _end(link: socket.socket, processes: Sequence[PoolProcess], owner: int) -> None:
    link.close()
    for process in processes:
        if os.getpid() == owner:
            process.kill()  # it holds nothing
        else:  # this process was forked from their parent, and must not wait for them
            process.returncode = 0
    for process in processes:
        process.wait()
