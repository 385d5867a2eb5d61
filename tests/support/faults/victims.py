"""The processes of a run, and what can be done to them from outside."""

from __future__ import annotations

import ctypes
import os
import signal
import socket

from tests.support.proc import ESTABLISHED, LISTENING, Process, connections, descriptors, open_files, processes

NAMES = ("worker", "server", "coordinator")
PIDFD_GETFD = 438  # Linux' number of the system call


def family(pid: int) -> dict[str, int]:
    """Return the process ids of a command's living descendants: those of a run by their names, others by number."""
    children: dict[int, list[Process]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process)
    found: dict[str, int] = {}
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            name = child.name if child.name.partition(" ")[0] in NAMES else str(child.pid)
            found.setdefault(name, child.pid)  # a fork has its parent's name until it takes its own
            waiting.append(child.pid)
    return found


def cut(pid: int, which: str, coordinator: int) -> bool:
    """Break one TCP connection of a process, as if a firewall had reset it; False if there is none.

    which: control or snapshots, to the coordinator | peer: to, or from, any other process. coordinator: its process."""
    table = connections()
    files = open_files(coordinator)
    ports = {found.port for name, found in table.items() if name in files and found.state == LISTENING}
    if not ports:  # left out of the kernel's table
        return False
    to_coordinator, others = [], []
    for descriptor, name in sorted(descriptors(pid).items()):
        if name in table and table[name].state == ESTABLISHED:
            (to_coordinator if table[name].remote_port in ports else others).append(descriptor)
    chosen = {"control": to_coordinator[:1], "snapshots": to_coordinator[1:2], "peer": others[-1:]}[which]
    return any(_shut_down(pid, descriptor) for descriptor in chosen)


def _shut_down(pid: int, descriptor: int) -> bool:
    """Shut a socket of another process down, through a duplicate of its descriptor."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, handle, descriptor, 0)
        if copy < 0:
            return False
        with socket.socket(fileno=copy) as connection:
            connection.shutdown(socket.SHUT_RDWR)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def signalled(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False if the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
