"""Forked processes, and the resources that they cannot share with their parent: open files and connections, whose
position and protocol would be common, and threads, which they lack.

Files are opened again in the forked process, at the same position: `positions` and `reopen`.

`Children` are forked processes that call a function each, so that nothing of it stays in this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import select
import signal
import stat
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from types import TracebackType
from typing import NamedTuple

from dsgd.host.signals import block_signals, end_with_parent, raise_swallowed
from dsgd.host.stop import EXIT_INTERRUPTED, STOP_SIGNALS

OPENMP = re.compile(r"/.*/lib[gi]?omp\d*[-.].*$", re.MULTILINE)  # runtimes; a process may have loaded several
PAUSE_HARD = 2  # of omp_pause_resource_all
POLL_S = 0.01

DESCRIPTORS = "/proc/self/fd"
KEPT = os.O_ACCMODE | os.O_APPEND  # flags of a file that is opened again
HARMLESS = re.compile(r"/dev/(null|zero|u?random)$|anon_inode:")  # without a position, and without a peer


@dataclass(frozen=True)
class Holdings:
    """Open descriptors, each with the name that the kernel has for it, and threads of Python's.

    A system without /proc names no descriptors."""

    descriptors: frozenset[tuple[int, str]]
    threads: frozenset[threading.Thread]

    @classmethod
    def now(cls) -> Holdings:
        """Return the files, connections and threads of this process."""
        names = {number: _name(number) for number in (os.listdir(DESCRIPTORS) if os.path.isdir(DESCRIPTORS) else ())}
        named = ((int(number), name) for number, name in names.items() if name and not HARMLESS.match(name))
        return cls(frozenset(named), frozenset(threading.enumerate()))

    def since(self, before: Holdings) -> Holdings:
        """Return the files, connections and threads opened since `before`."""
        return Holdings(self.descriptors - before.descriptors, self.threads - before.threads)

    @property
    def files(self) -> dict[int, str]:
        """Return the descriptors of files, which can be opened again."""
        return {number: name for number, name in sorted(self.descriptors) if name.startswith("/")}

    @property
    def others(self) -> list[str]:
        """Return the names of connections and threads, which a forked process cannot open again."""
        connections = sorted(name for _, name in self.descriptors if not name.startswith("/"))
        return connections + ["a thread"] * len(self.threads)


_private: dict[int, str] = {}  # descriptors of files that every forked process opens again


def open_in_forks(files: Mapping[int, str]) -> None:
    """Have files opened again in every process that is forked from now on: each gets its own position."""
    _private.update(files)


def positions() -> dict[int, tuple[int, int]]:
    """Return position and flags of the files to open in a process that is forked now."""
    present = [number for number, name in _private.items() if _name(str(number)) == name]
    return {
        number: (os.lseek(number, 0, os.SEEK_CUR), fcntl.fcntl(number, fcntl.F_GETFL))
        for number in present
        if stat.S_ISREG(os.fstat(number).st_mode)
    }


def reopen(files: Mapping[int, tuple[int, int]]) -> None:
    """Open files again, in the forked process, under their descriptors, at their positions. Raises OSError."""
    for number, (position, flags) in files.items():
        # also of a file that has been removed, or never had a name
        other = os.open(os.path.join(DESCRIPTORS, str(number)), flags & KEPT)
        os.lseek(other, position, os.SEEK_SET)
        os.dup2(other, number, os.get_inheritable(number))
        os.close(other)


def surplus(names: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the names without a counterpart of their kind among `others`: socket, pipe or thread."""
    left, missing = Counter(map(_kind, others)), list[str]()
    for name in names:
        if left[_kind(name)]:
            left[_kind(name)] -= 1
        else:
            missing.append(name)
    return missing


def _kind(name: str) -> str:
    return name.partition(":")[0]  # socket:[4711], pipe:[4711]


def _name(number: str) -> str | None:
    try:
        return os.readlink(os.path.join(DESCRIPTORS, number))
    except OSError:  # closed meanwhile, such as the descriptor of the listing itself
        return None


def fork(prepare: Callable[[], None], main: Callable[[], int]) -> int:
    """Fork a process that calls `prepare` and `main`. Its exit status is the result of `main`, 130 after a
    KeyboardInterrupt, and 1 after any other exception, which it prints. Returns its process id.

    STOP_SIGNALS are blocked around the fork, where exceptions of their handlers would be lost, and in the new process
    until it is prepared. OpenMP runtimes end their threads: the new process would wait for them in its next parallel
    region, for ever. Files that data sets read from are opened again in it (`reopen`)."""
    _end_openmp_threads()
    sys.stdout.flush()
    sys.stderr.flush()
    files = positions()
    with block_signals(STOP_SIGNALS) as mask:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                try:
                    reopen(files)
                    prepare()
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                    status = main()
                except SystemExit as end:
                    status = end.code if isinstance(end.code, int) else 1
                except KeyboardInterrupt:
                    status = EXIT_INTERRUPTED
                except Exception:  # the end of this process, which no other code would report
                    traceback.print_exc()
                finally:
                    with contextlib.suppress(OSError, ValueError):
                        sys.stdout.flush()
                        sys.stderr.flush()
            finally:  # also of a signal in the lines above: never return into the parent's code
                os._exit(status)
    return pid


def _end_openmp_threads() -> None:
    """End the threads that parallel regions of this thread have left; its next region starts them again."""
    with contextlib.suppress(OSError):  # a system without /proc
        for path in set(OPENMP.findall(Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"))):
            # of OpenMP 5.0; an older runtime lacks it
            pause = getattr(ctypes.CDLL(path), "omp_pause_resource_all", None)
            if pause is not None:
                pause(PAUSE_HARD)


@dataclass
class ForkedProcess:
    """A process that this one has forked, with the methods and the returncode of subprocess.Popen."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or minus the signal that ended the process; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its status. Raises TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(POLL_S)
        return status

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class ChildResult(NamedTuple):
    """Hold the result of a child. text: result of its function. status: 0, 1 for an exception, 130 for
    KeyboardInterrupt, the status of a SystemExit, or minus the number of the signal that killed it. signals:
    STOP_SIGNALS received since the block began, and forwarded to it."""

    text: str
    status: int
    signals: Sequence[int]


@dataclass
class _Child:
    """name: the caller's name for it. waiting: signals to be sent once the process exists. text: result read so far."""

    name: int
    waiting: deque[int]
    pid: int = 0
    text: bytes = b""

    def send(self) -> None:
        """Send each signal once, even if a handler interrupts this method with the same call."""
        while self.pid and self.waiting:
            with contextlib.suppress(IndexError, ProcessLookupError):
                os.kill(self.pid, self.waiting.popleft())


class Children:
    """Processes that call a function each, in a `with` block.

    Inside of it, this process only forwards STOP_SIGNALS to the children, which get none from a terminal. At the end of
    the block, the previous handlers get the signals that no result of `wait` has named. signals: received signals."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self._heard = 0  # number of signals that a result of `wait` has named
        self._children: dict[int, _Child] = {}  # by the pipe of their results

    def __enter__(self) -> Children:
        self._parent = os.getpid()
        # a handler would raise inside of os.fork, where exceptions are lost
        self._handlers = {number: signal.signal(number, self._pass_on) for number in STOP_SIGNALS}
        try:
            raise_swallowed(self._handlers.values())
        except KeyboardInterrupt:
            self._restore_handlers()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the remaining children, as after an exception, and restore the signal handlers."""
        heard = self._heard
        self.end()
        while self._children:
            self.wait()
        self._restore_handlers()
        for number in self.signals[heard:]:
            signal.raise_signal(number)

    def end(self) -> None:
        """Ask all children to end."""
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)

    def __len__(self) -> int:
        """Return the number of children not waited for."""
        return len(self._children)

    def start(self, function: Callable[[], str], name: int = 0) -> None:
        """Fork a process that calls `function` with the signal handlers from before the block. It also gets earlier
        signals: the caller may not have seen the last one yet."""
        reading, writing = os.pipe()
        with block_signals(STOP_SIGNALS):  # a signal is either in the list already or is forwarded to a known child
            child = self._children[reading] = _Child(name, deque(self.signals))

        def prepare() -> None:
            for pipe in self._children:
                os.close(pipe)
            os.setpgid(0, 0)
            end_with_parent(self._parent, signal.SIGTERM)
            self._restore_handlers()

        def main() -> int:
            text = function().encode()
            with contextlib.suppress(BrokenPipeError):  # the reading process has been killed
                while text:  # a signal ends a call early
                    text = text[os.write(writing, text) :]
            return 0

        try:
            child.pid = fork(prepare, main)
        except OSError:  # no more processes, or no memory
            del self._children[reading]
            os.close(reading)
            raise
        finally:
            os.close(writing)
        child.send()

    def wait(self, idle: Callable[[], None] | None = None, every_s: float | None = None) -> tuple[int, ChildResult]:
        """Wait for the first child that ends. Returns its name and its result.

        idle: called meanwhile, whenever `every_s` seconds have passed without news."""
        while True:
            readable, _, _ = select.select(list(self._children), [], [], every_s)
            if idle is not None and not readable:
                idle()
            for pipe in readable:
                child = self._children[pipe]
                if text := os.read(pipe, 1 << 16):
                    child.text += text
                    continue
                _, status = os.waitpid(child.pid, 0)
                del self._children[pipe]
                os.close(pipe)
                signals = self.signals[:]
                self._heard = len(signals)
                return child.name, ChildResult(child.text.decode(), os.waitstatus_to_exitcode(status), signals)

    def _pass_on(self, number: int, frame: object) -> None:
        self.signals.append(number)
        for child in list(self._children.values()):
            child.waiting.append(number)
            child.send()

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


def run_in_child(function: Callable[[], str], patience_s: int = 0) -> ChildResult:
    """Fork, call `function` in the child, and wait for its end. patience_s: seconds until SIGALRM kills the
    child; 0: never."""

    def limited() -> str:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(patience_s)
        return function()

    with Children() as children:
        children.start(limited)
        _, child = children.wait()
    return child
