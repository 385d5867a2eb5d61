"""The parent of all processes of a run on one machine: forks them, keeps their logs, ends what is left over.

It has one thread and no CUDA, so that it can fork at any time; what it has loaded is shared by all it forks. One dead
child takes no other along.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dsgd.host.launcher import STOPS
from dsgd.processes.control.connection import CoordinatorConnection, CoordinatorGone

GRACE_S = 3.0  # for a child to end by itself when the run is over
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


@dataclass
class Child:
    name: str
    main: Callable[[bool], int]  # argument: does it take the place of one that has died? result: exit status
    restarts: int = 0  # that are left
    pid: int = 0
    echo: int | None = None  # the end of a pipe whose content goes to the log and to the terminal
    status: int | None = None  # once it has ended, as subprocess has it: minus the signal that killed it


@dataclass
class Parent:
    """logs: folder for the children's output, which exists. closing: sockets that no child may keep open."""

    logs: Path
    closing: list[socket.socket] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)
    status: str | None = None  # of the run, as a coordinator elsewhere has said at its end
    heard: float = 0.0  # when that coordinator last said anything, by time.monotonic()

    def start(
        self, name: str, main: Callable[[bool], int], restarts: int = 0, echo: bool = False, quiet: bool = True
    ) -> Child:
        """Fork a child. echo: its output is shown here as well. quiet: its output goes to its log, not here."""
        child = Child(name, main, restarts)
        self.children.append(child)
        self._fork(child, again=False, echo=echo, quiet=quiet)
        return child

    def _fork(self, child: Child, again: bool, echo: bool, quiet: bool) -> None:
        reading, writing = os.pipe() if echo else (None, None)
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        child.pid = os.fork()
        if child.pid == 0:
            status = 1
            try:
                _settle(
                    child.name, parent, self.logs / f"{child.name.replace(' ', '_')}.log" if quiet else None, writing
                )
                for other in self.closing if quiet else []:
                    other.close()
                status = child.main(again)
            except KeyboardInterrupt:
                status = 130
            except Exception:  # the end of this process, which nobody else would report
                traceback.print_exc()
            finally:  # never back into the code that called: it is the parent's
                with contextlib.suppress(OSError, ValueError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(status)
        child.status = None
        if writing is not None:
            os.close(writing)
            child.echo = reading

    def supervise(self, over: Child | CoordinatorConnection, stop: Callable[[], None]) -> int | None:
        """Wait until the run is over: until the child that coordinates it has ended, or the line to it elsewhere. Then
        end every child. stop: called on the first of STOPS; on Ctrl-C after it again, which then kills all. Returns
        the coordinating child's exit status."""
        self.heard = time.monotonic()
        try:
            with _signals() as (woken, caught):
                stopped = False
                while not self._is_over(over, woken):
                    while caught:
                        impatient = stopped and caught[0] == signal.SIGINT
                        del caught[0]
                        if impatient or not stopped:  # SLURM's signals come in twos and mean one thing
                            stop()
                        if impatient:
                            raise KeyboardInterrupt
                        stopped = True
                    for child in self.children:
                        if child is not over and child.status not in (None, 0) and child.restarts > 0:
                            child.restarts -= 1
                            self._fork(child, again=True, echo=child.echo is not None, quiet=True)
        finally:
            self._end()
        return over.status if isinstance(over, Child) else None

    def _is_over(self, over: Child | CoordinatorConnection, woken: int) -> bool:
        """Wait a little for anything to happen."""
        pipes = {child.echo: child for child in self.children if child.echo is not None}
        line = [over.fileno()] if isinstance(over, CoordinatorConnection) else []
        readable, _, _ = select.select([woken, *pipes, *line], [], [], 0.5)
        if woken in readable:
            os.read(woken, 4096)
        for pipe in readable:
            if pipe in pipes:
                self._show(pipes[pipe])
        self._reap()
        if isinstance(over, Child):
            return over.status is not None
        if over.fileno() not in readable:
            if time.monotonic() - self.heard <= over.timeout_s:
                return False
            print(f"the coordinator has been silent for {over.timeout_s:g} s", file=sys.stderr)
            self.status = "failed"
            return True
        self.heard = time.monotonic()
        try:
            message = over.receive()
        except CoordinatorGone:
            self.status = "failed"
            return True
        self.status = message.get("status")
        return message["kind"] == "exit"

    def _show(self, child: Child) -> None:
        assert child.echo is not None
        content = os.read(child.echo, 1 << 16)
        if not content:
            os.close(child.echo)
            child.echo = None
            return
        with (self.logs / f"{child.name.replace(' ', '_')}.log").open("ab") as log:
            log.write(content)
        sys.stderr.write(content.decode(errors="replace"))
        sys.stderr.flush()

    def _reap(self) -> None:
        for child in self.children:
            if child.status is None:
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid:
                    child.status = os.waitstatus_to_exitcode(status)

    def _end(self) -> None:
        """Nothing is left when this returns, not even a stopped process."""
        deadline = time.monotonic() + GRACE_S
        self._reap()
        while any(child.status is None for child in self.children):
            if time.monotonic() > deadline:
                for child in self.children:
                    if child.status is None:
                        os.kill(child.pid, signal.SIGKILL)
            time.sleep(0.01)
            self._reap()
        for child in self.children:
            while child.echo is not None:
                self._show(child)


def _settle(name: str, parent: int, log: Path | None, writing: int | None) -> None:
    """What a child does first: out of reach of the terminal's signals, and never to outlive its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())  # as ps and top show it
        if os.getppid() != parent:
            os._exit(1)
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (*STOPS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
    if log is None:
        return
    null = os.open(os.devnull, os.O_RDONLY)
    out = writing if writing is not None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)


@contextmanager
def _signals() -> Iterator[tuple[int, list[int]]]:
    """A file descriptor that becomes readable on signals, and the list of those that ask to stop."""
    caught: list[int] = []
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    numbers: Sequence[signal.Signals] = (*STOPS, signal.SIGCHLD)
    before = {number: signal.getsignal(number) for number in numbers}
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        for number in STOPS:
            signal.signal(number, lambda received, frame: caught.append(received))
        signal.signal(signal.SIGCHLD, lambda received, frame: None)
        yield reading, caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reading)
        os.close(writing)
