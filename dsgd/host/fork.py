"""Forked processes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable

from dsgd.host.signals import blocked
from dsgd.host.stop import EXIT_INTERRUPTED, STOP_SIGNALS


def fork(prepare: Callable[[], None], main: Callable[[], int]) -> int:
    """Fork a process that calls `prepare` and `main` and ends with the status that `main` returns, with 130 after a
    KeyboardInterrupt, and with 1 after any other exception, which it prints. Returns its process id.

    STOP_SIGNALS are blocked around the fork, where exceptions of their handlers would be lost, and in the new process
    until it is prepared."""
    sys.stdout.flush()
    sys.stderr.flush()
    with blocked(STOP_SIGNALS) as mask:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                try:
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
