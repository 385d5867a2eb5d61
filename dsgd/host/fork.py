"""Forked processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired

from dsgd.host.held import positions, reopen
from dsgd.host.signals import blocked
from dsgd.host.stop import EXIT_INTERRUPTED, STOP_SIGNALS

OPENMP = re.compile(r"/.*/lib[gi]?omp\d*[-.].*$", re.MULTILINE)  # runtimes; a process may have loaded several
PAUSE_HARD = 2  # of omp_pause_resource_all
POLL_S = 0.01


def fork(prepare: Callable[[], None], main: Callable[[], int]) -> int:
    """Fork a process that calls `prepare` and `main` and ends with the status that `main` returns, with 130 after a
    KeyboardInterrupt, and with 1 after any other exception, which it prints. Returns its process id.

    STOP_SIGNALS are blocked around the fork, where exceptions of their handlers would be lost, and in the new process
    until it is prepared. No OpenMP runtime keeps threads: the new process would wait for them in its next parallel
    region, for ever. Files that data sets read from are opened once more in it (`dsgd.host.held`)."""
    _end_openmp_threads()
    sys.stdout.flush()
    sys.stderr.flush()
    files = positions()
    with blocked(STOP_SIGNALS) as mask:
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
                except Exception:  # the end of this process, which nobody else would report
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
    """A process that this one has forked, with the methods of subprocess.Popen. returncode: as there."""

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
