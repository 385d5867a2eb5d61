"""Count the waits for a peer in slices of sleep rather than by the clock: a process that was itself stopped for an hour
must not blame its peers for it."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios

SLICES_PER_WAIT = 8  # a wait ends at most one slice too early or too late


def unacknowledged(sock: socket.socket) -> int:
    """Return the bytes that this kernel still has to send over a TCP connection, or have acknowledged.

    That they become fewer is progress: on a slow link the last megabytes of a message are on their way long after they
    were written."""
    (count,) = struct.unpack("@i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4))
    return count
