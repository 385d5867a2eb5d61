"""The parent of all processes of a run on one machine: it forks them, keeps their logs and ends them.

It has one thread and no CUDA, so it can fork at any time; the children share its memory. Children end independently.

A socket connects it with its forked coordinator: signs of life one way, requests to stop the other. Signals serve
neither purpose: a signal before its handler is installed is lost, and a terminal's signal reaches other processes too.
Data in a socket waits.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dsgd.engines.dist.control import CoordinatorConnection, CoordinatorGone
from dsgd.host.fork import fork
from dsgd.host.signals import CaughtSignals, Interrupted, StopRequests, end_with_parent
from dsgd.host.stop import STOP_SIGNALS
from dsgd.host.terminal import print_utf8
from dsgd.host.title import set_title
from dsgd.record.safe_text import for_terminal

BEAT_S = 1.0  # between two signs of life
BEAT, STOP = b".", b"!"
EXIT_GRACE_S = 1.0  # for children to end by themselves when the run is over
IMPATIENCE_S = 5.0  # for a coordinator to write its record after a second Ctrl-C
POLL_S = 0.5


class Lifeline:
    """Both ends of the socket, until the fork. timeout_s: silence after which the coordinator is given up."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.socket, self.theirs = socket.socketpair()
        self.socket.setblocking(False)
        self.theirs.setblocking(False)

    def close(self) -> None:
        """Close both ends in this process."""
        self.socket.close()
        self.theirs.close()

    def ask_to_stop(self) -> None:
        """Ask the coordinator to end the run; a second call ends it at once. Does nothing if it has ended."""
        with contextlib.suppress(OSError):
            self.socket.send(STOP)

    def listen(self) -> None:
        """Read the coordinator's signs of life."""
        with contextlib.suppress(OSError):
            self.socket.recv(4096)


@contextlib.contextmanager
def oversight(line: Lifeline) -> Iterator[StopRequests]:
    """Show the parent that this process, the coordinator, lives, and yield the parent's requests to stop.

    SIGINT wakes the main thread; a SIGINT from another sender requests nothing."""
    line.socket.close()  # of the parent
    requests = StopRequests()
    previous = signal.signal(signal.SIGINT, lambda number, frame: requests.deliver())
    threading.Thread(target=_keep, args=(line.theirs, requests), name="lifeline", daemon=True).start()
    try:
        yield requests
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN if previous is None else previous)


def _keep(line: socket.socket, requests: StopRequests) -> None:
    """Beat until the parent is gone."""
    main = threading.main_thread().ident
    assert main is not None
    while True:
        try:
            with contextlib.suppress(BlockingIOError):  # the parent has been stopped for long
                line.send(BEAT)
            if not select.select([line], [], [], BEAT_S)[0]:
                continue
            asked = line.recv(16)
        except OSError:  # reset, by a parent that had not read every sign of life
            return
        if not asked:
            return
        for _ in asked:
            requests.add(is_ctrl_c=True)
            signal.pthread_kill(main, signal.SIGINT)


@dataclass
class Child:
    """A forked process. line: socket to a coordinator. echo: reading end of a pipe, copied to the log and the terminal.
    status: exit status as in subprocess, minus the signal that killed it; None while it runs."""

    name: str
    log: Path
    line: Lifeline | None = None
    pid: int = 0
    echo: int | None = None
    status: int | None = None


@dataclass
class Parent:
    """Starts, watches and ends the children.

    logs: existing folder for their output, without links. signals: signals caught since before the first child: a
    handler that raises would raise inside of os.fork, where exceptions are lost. closing: sockets that no child may
    keep open. status: status of the run, sent by a coordinator on another machine; failed if the coordinator fell
    silent. silent_s: duration of its silence, without times in which this process was stopped. polled: time of the last
    poll, by time.monotonic()."""

    logs: Path
    signals: CaughtSignals
    closing: list[socket.socket] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)
    status: str | None = None
    silent_s: float = 0.0
    polled: float = 0.0

    def start(
        self, name: str, main: Callable[[], int], echo: bool = False, quiet: bool = True, line: Lifeline | None = None
    ) -> Child:
        """Fork a child. main: returns its exit status. echo: its output goes to the log and the terminal. quiet: its
        output goes only to the log. line: socket to a coordinator; the child takes the coordinator's end."""
        child = Child(name, self.logs / f"{name.replace(' ', '_')}.log", line)
        self.children.append(child)
        reading, writing = os.pipe() if echo else (None, None)
        parent = os.getpid()

        def prepare() -> None:
            title = for_terminal(f"{child.name} of {self.logs.parent}")
            _detach(child.name, title, parent, child.log if quiet else None, writing)
            for other in self.closing if quiet else []:
                other.close()

        child.pid = fork(prepare, main)
        if writing is not None:
            os.close(writing)
            child.echo = reading
        if line is not None:
            line.theirs.close()
            self.closing.append(line.socket)
        return child

    def supervise(self, over: Child | CoordinatorConnection, stop: Callable[[], None]) -> int | None:
        """Wait until the run is over, then end every child.

        over: the coordinator, a child or the connection to another machine; its end ends the run. stop: called on the
        first of STOP_SIGNALS, and on a later Ctrl-C, after which a child has IMPATIENCE_S to end. Returns the exit
        status of a coordinating child. Raises KeyboardInterrupt if a Ctrl-C has ended the run immediately."""
        caught, stopped, deadline = self.signals.numbers, False, math.inf
        self.silent_s, self.polled = 0.0, time.monotonic()
        try:
            while not self._poll(over):
                while caught:
                    number = caught.pop(0)
                    impatient = stopped and number == signal.SIGINT
                    if (impatient and deadline == math.inf) or not stopped:  # SLURM sends two signals for one event
                        stop()
                    if impatient:
                        deadline = min(deadline, time.monotonic() + IMPATIENCE_S * isinstance(over, Child))
                    stopped = True
                if time.monotonic() >= deadline:
                    raise Interrupted
        finally:
            self._end()
        return over.status if isinstance(over, Child) else None

    def _poll(self, over: Child | CoordinatorConnection) -> bool:
        """Wait up to POLL_S for output, signals and messages; returns whether the run is over."""
        pipes = {child.echo: child for child in self.children if child.echo is not None}
        line = over.line if isinstance(over, Child) else over
        lines = [] if line is None else [line.socket.fileno()]
        woken = self.signals.descriptor
        readable, _, _ = select.select([woken, *pipes, *lines], [], [], POLL_S)
        now = time.monotonic()
        self.silent_s += min(now - self.polled, 2 * POLL_S)  # a longer gap is our own: this process was stopped
        self.polled = now
        if woken in readable:
            os.read(woken, 4096)
        for pipe in readable:
            if pipe in pipes:
                self._copy_output(pipes[pipe])
        self._reap()
        if isinstance(over, Child) and over.status is not None:
            return True
        if line is None:
            return False
        if line.socket.fileno() in readable:
            self.silent_s = 0.0
            return self._receive(line)
        if self.silent_s <= line.timeout_s:
            return False
        print(f"the coordinator has been silent for {line.timeout_s:g} s", file=sys.stderr, flush=True)
        self.status = "failed"
        return True

    def _receive(self, line: Lifeline | CoordinatorConnection) -> bool:
        """Read the coordinator's messages; returns whether the run is over."""
        if isinstance(line, Lifeline):
            line.listen()
            return False
        try:
            message = line.receive()
        except CoordinatorGone:
            self.status = "failed"
            return True
        self.status = message.get("status")
        return message["kind"] == "exit"

    def _copy_output(self, child: Child) -> None:
        assert child.echo is not None
        content = os.read(child.echo, 1 << 16)
        if not content:
            os.close(child.echo)
            child.echo = None
            return
        with (
            contextlib.suppress(OSError),
            open(_log_file(child.log), "ab") as log,
        ):  # the disk is full: the terminal has it all
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
        """End all children, stopped ones included."""
        deadline = time.monotonic() + EXIT_GRACE_S
        self._reap()
        while any(child.status is None for child in self.children):
            for child in self.children:
                if child.status is None and time.monotonic() > deadline:
                    os.kill(child.pid, signal.SIGKILL)
            time.sleep(0.01)
            self._reap()
        for child in self.children:
            while child.echo is not None:
                self._copy_output(child)
            if child.line is not None:
                child.line.close()


def _log_file(log: Path) -> int:
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _detach(name: str, title: str, parent: int, log: Path | None, writing: int | None) -> None:
    """Detach a new child from the terminal and its signals, and let it never outlive its parent."""
    end_with_parent(parent, signal.SIGKILL)
    set_title(name, f"dsgd: {title}")
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (*STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
    if log is None:
        return
    print_utf8()
    null = os.open(os.devnull, os.O_RDONLY)
    out = writing if writing is not None else _log_file(log)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
