"""Files that another user may have written, and paths below a home."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

TEXT_BYTES = 2**26  # of a text file, at most


@contextmanager
def regular_file(path: str | Path) -> Iterator[tuple[FileIO, int]]:
    """Open a regular file to read, unbuffered; yield it and its size in bytes.

    Raises OSError for other files, with a strerror that names their kind, and for a FIFO, without waiting for a
    writer."""
    with FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield file, status.st_size


def text_lines(path: str, key: str) -> list[str]:
    """Return the lines of a text file of the user's. Raises ValueError, naming the key, if it cannot be read."""
    named = path if path.isprintable() else repr(path)
    try:
        with regular_file(path) as (file, size):
            if size > TEXT_BYTES:
                raise ValueError(f"{key} must be a file of at most {TEXT_BYTES} bytes, got {size} in {named}")
            return file.read(size).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise ValueError(f"{key} must be a readable file, got {named} ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ValueError(f"{key} must be a text file in UTF-8, got {named}") from None


def expanded(path: str, key: str) -> Path:
    """Return a path with the home that a `~` at its beginning stands for. Raises ValueError, naming the key, if this
    user has no home."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{key} must be a path without ~ where there is no home folder, got {path}") from error


def version_of(path: Path) -> tuple[int, ...]:
    """Return numbers that change with a file: when it changed last, in nanoseconds, its size, and which file it is."""
    status = path.stat()
    return (status.st_mtime_ns, status.st_size, status.st_ino)
