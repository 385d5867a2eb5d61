"""The processes of a run, and what can be done to them from outside."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from pathlib import Path

NAMES = ("worker", "server", "evaluator", "coordinator")
PIDFD_GETFD = 438  # Linux' number of the system call


def family(pid: int) -> dict[str, int]:
    """Return the process ids of a command's living descendants: those of a run by their names, others by number."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = entry.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, parent = rest.split()[:2]
        if state not in "ZX":
            number, _, name = head.partition(" (")
            parents.setdefault(int(parent), []).append((int(number), name))
    found: dict[str, int] = {}
    waiting = [pid]
    while waiting:
        for child, name in parents.get(waiting.pop(), ()):
            found[name if name.partition(" ")[0] in NAMES else str(child)] = child
            waiting.append(child)
    return found


def sockets(pid: int) -> dict[int, int]:
    """Return the inodes of a process's sockets, by descriptor; none if it is gone."""
    found = {}
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(entry)
            if target.startswith("socket:["):
                found[int(entry.name)] = int(target[8:-1])
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass  # it ended, or closed one, while we looked
    return found


def tcp() -> dict[int, tuple[str, int, int]]:
    """Return state, local and remote port of this machine's TCP sockets, by inode. States as in /proc/net/tcp."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[9]): (row[3], int(row[1].split(":")[1], 16), int(row[2].split(":")[1], 16)) for row in rows}


def cut(pid: int, which: str, coordinator: int) -> bool:
    """Break one TCP connection of a process, as if a firewall had reset it; False if there is none.

    which: control or snapshots, to the coordinator | peer: to, or from, any other process. coordinator: its process."""
    table = tcp()
    listening = {inode: local for inode, (state, local, _) in table.items() if state == "0A"}
    ports = {listening[inode] for inode in sockets(coordinator).values() if inode in listening}
    if not ports:  # the kernel leaves lines out of its table while others are made
        return False
    to_coordinator, others = [], []
    for descriptor, inode in sorted(sockets(pid).items()):
        if inode in table and table[inode][0] == "01":
            (to_coordinator if table[inode][2] in ports else others).append(descriptor)
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
