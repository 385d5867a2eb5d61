"""Keep room on the disk for a run's summary, so that a run whose disk has filled up can say how it ended.

The summary is written into the room itself, which then gets the summary's name: at no moment could others take it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from dsgd.record.written import check_replaceable, open_kept, write_all, write_atomically

ROOM = ".room"
ROOM_BYTES = 1 << 14


@contextlib.contextmanager
def room_kept(folder: Path) -> Iterator[None]:
    """Keep room in a folder inside of the block. Raises OSError if there is none."""
    path = folder / ROOM
    try:
        _fill(path, os.urandom(ROOM_BYTES))  # a file system may store zeros without any room
        yield
    finally:
        with contextlib.suppress(OSError):  # it has become the summary, or the disk cannot be written
            os.unlink(path)


def write_in_room(path: Path, content: bytes) -> None:
    """Replace a file in one step, in the room that is kept in its folder.

    Without such room, and where a file system does not write in place, it is written like any other. Raises OSError."""
    check_replaceable(path)
    room = path.with_name(ROOM)
    if os.path.lexists(room):
        try:
            _fill(room, content)
            os.replace(room, path)
            return
        except OSError:
            room.unlink(missing_ok=True)
    write_atomically(path, content)


def _fill(path: Path, content: bytes) -> None:
    """Write a file in place, made if it is not there, and flush it to the disk."""
    with FileIO(open_kept(path, os.O_WRONLY), "wb") as file:
        write_all(file, content)
        file.truncate()
        os.fsync(file.fileno())
