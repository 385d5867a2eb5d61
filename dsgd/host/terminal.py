"""Standard output and error that outlive their readers: a run continues without its terminal."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

EVERY_S = 30.0  # of host time, between two lines of a log
GONE = (errno.EPIPE, errno.EIO)  # errors of a pipe without a reader, and of a closed terminal
PIPE_WIDTH = 160  # characters of a line without a terminal and without COLUMNS
NAMES = {1: "standard output", 2: "standard error"}


class LastingFile(io.FileIO):
    """A file descriptor, 1 or 2, whose writes never fail: output that cannot be written is dropped."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or 0
        except OSError as error:
            _discard(self.fileno())
            if error.errno not in GONE:  # a disk may be full
                with contextlib.suppress(OSError):
                    os.write(2, f"{NAMES[self.fileno()]} cannot be written: {error.strerror}\n".encode())
            return memoryview(content).nbytes


def keep_streams() -> None:
    """Have sys.stdout and sys.stderr outlive their readers, and show characters that their encoding lacks as question
    marks.

    Closed standard descriptors are opened on /dev/null: the next opened file would take their number, and get all
    output. Call it before opening any file."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            _discard(descriptor)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        encoding = "utf-8" if before is None else before.encoding
        raw = LastingFile(descriptor, "w", closefd=False)
        lines = descriptor == 2 or raw.isatty()
        stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding, "replace", line_buffering=lines)
        setattr(sys, name, stream)


def print_utf8() -> None:
    """Have this process print UTF-8 in any locale: its output goes to a file, or to another process that shows it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def table_console(pipe_width: int = PIPE_WIDTH) -> Console:
    """Return a console for tables on standard output, as wide as COLUMNS, the terminal or else `pipe_width`."""
    from rich.console import Console

    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return Console(width=int(columns))
    return Console(width=None if sys.stdout.isatty() else pipe_width)


def bar_console() -> tuple[Console, bool]:
    """Return a console on standard error, and whether a bar may change there: FORCE_COLOR makes no file a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    return console, console.is_terminal and sys.stderr.isatty()


def _discard(descriptor: int) -> None:
    """Let a descriptor lead nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)
    else:
        os.set_inheritable(descriptor, True)
