"""The line between a parent and the coordinator that it has forked: signs of life one way, requests to stop the other.

A signal would do for neither: one that comes before its handler stands is lost, and a terminal's reaches more processes
than it is meant for. What is written into a socket waits.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import threading
from collections.abc import Iterator

from dsgd.host.signals import StopRequests

BEAT_S = 1.0  # between two signs of life
BEAT, STOP = b".", b"!"


class Lifeline:
    """Both ends, until the fork. timeout_s: of silence, after which the coordinator is given up."""

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
        """Ask the coordinator to end the run; a second time: at once. Does nothing if it has ended."""
        with contextlib.suppress(OSError):
            self.socket.send(STOP)

    def listen(self) -> None:
        """Take in what the coordinator has sent."""
        with contextlib.suppress(OSError):
            self.socket.recv(4096)


@contextlib.contextmanager
def overseen(line: Lifeline) -> Iterator[StopRequests]:
    """Show the parent that this process, the coordinator, lives, and yield the parent's requests to stop.

    SIGINT serves to wake the main thread; one that somebody else sends asks for nothing."""
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
