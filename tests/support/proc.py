"""What Linux tells in /proc of processes, their files and their connections. What ends meanwhile is left out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ESTABLISHED, LISTENING = "01", "0A"  # states in /proc/net/tcp
LOOPBACK = "0100007F"  # a host there


class Process(NamedTuple):
    """A process that has not ended."""

    pid: int
    name: str
    parent: int


class Connection(NamedTuple):
    """A TCP socket of this machine, its hosts as the kernel writes them."""

    state: str
    host: str
    port: int
    remote_port: int


def processes() -> Iterator[Process]:
    """Yield all processes that have not ended."""
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and (found := _process(int(entry))) is not None:
            yield found


def is_alive(pid: int) -> bool:
    return _process(pid) is not None


def _process(pid: int) -> Process | None:
    try:
        head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent = rest.split()[:2]
    return None if state in "ZX" else Process(pid, head.partition(" (")[2], int(parent))


def open_files(pid: int) -> set[str]:
    """Return what the descriptors of a process lead to; nothing if it is not ours."""
    return set(descriptors(pid).values())


def descriptors(pid: int) -> dict[int, str]:
    """Return what each descriptor of a process leads to; none if it is not ours."""
    found = {}
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            found[int(link.name)] = os.readlink(link)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass  # it ended, or closed one, while we looked
    return found


def connections() -> dict[str, Connection]:
    """Return the TCP sockets of this machine, by their names in `open_files`. The kernel leaves some of them out while
    others are made."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {f"socket:[{row[9]}]": _connection(*row[1:4]) for row in rows}


def _connection(local: str, remote: str, state: str) -> Connection:
    host, port = local.split(":")
    return Connection(state, host, int(port, 16), int(remote.split(":")[1], 16))


def listening() -> dict[str, tuple[str, int]]:
    """Return the hosts and ports that are listened to on this machine, by their names in `open_files`."""
    return {name: (found.host, found.port) for name, found in connections().items() if found.state == LISTENING}
