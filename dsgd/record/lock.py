"""The locks of folders: one run at a time writes in a record folder, and one command at a time in the folder of a
comparison or a sweep.

The kernel releases a lock when its owner, and every process that the owner has forked, has ended. The lock is on a
hidden file, because not every file system locks folders. Releasing the lock removes the file; if the owner was killed,
the file stays, unlocked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from dsgd.host.files import regular_file
from dsgd.record.safe_files import open_kept

LOCK = ".lock"
COMMAND_LOCK = ".command.lock"  # not the run's: a sweep's only job may have the sweep's folder
OWNER_BYTES = 1 << 10  # of a lock's file that are read: its owner's machine and process
TRIALS = 20  # of a file that others take away
UNLOCKABLE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # from file systems without locks


class FolderInUse(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def locked(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it is missing. name: name of the lock's file.

    Raises FolderInUse, and OSError."""
    descriptor = _take(folder, name)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the file is gone, or the disk cannot be written
            os.unlink(folder / name)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for a forked process that has not ended yet
        os.close(descriptor)


def owner_has_died(folder: Path, name: str) -> bool:
    """Return whether the process that took the lock of a folder has ended, so only its forked processes hold the lock.

    False if that is unknown, for example for a process of another machine."""
    return _owner_lives(folder, name) is False


def is_in_use(folder: Path, name: str = LOCK) -> bool:
    """Return whether a process of this machine that took the lock of a folder is alive. Takes no lock itself, which
    another process might be refused for."""
    return _owner_lives(folder, name) is True


def _owner_lives(folder: Path, name: str) -> bool | None:
    """Return whether the process that the lock's file names is alive; None if that is unknown."""
    try:
        with regular_file(folder / name) as (file, _):
            host, pid, _ = file.read(OWNER_BYTES).split(b"\n", 2)
        if host != socket.gethostname().encode():
            return None
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError):  # it has just been given back or taken; a process of another user
        return None
    return True


def _take(folder: Path, name: str) -> int:
    """Return a descriptor of the file in the folder, locked, with its owner in it. Raises FolderInUse, and OSError."""
    path, owner = folder / name, f"{socket.gethostname()}\n{os.getpid()}\n".encode()
    for attempt in range(TRIALS):
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            try:
                descriptor = open_kept(path, os.O_RDWR)
            except FileNotFoundError:  # a refused process has removed the folder
                if attempt == TRIALS - 1:
                    raise
                continue
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise FolderInUse(folder) from error
            except OSError as error:
                if error.errno not in UNLOCKABLE:
                    raise
                warning = f"{folder} cannot be locked ({error.strerror}): start nothing else in it"
                print(f"warning: {warning}", file=sys.stderr)
            try:
                if not os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                    continue
            except FileNotFoundError:  # its owner has given it back since it was opened
                continue
            try:
                os.ftruncate(descriptor, os.pwrite(descriptor, owner, 0))
                os.fsync(descriptor)
            except OSError:
                os.unlink(path)
                raise
            stack.pop_all()
            return descriptor
    raise FolderInUse(folder)
