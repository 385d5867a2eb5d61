"""The name and command line of this process, as ps, top and htop show them. Only on Linux."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path

PR_SET_NAME = 15  # of Linux' prctl
ARGUMENTS = 45  # places of their first and last address in /proc/self/stat, behind the name of the process


def set_title(name: str, title: str) -> None:
    """Show this process by a name of at most 15 bytes, and by a title instead of its command line.

    The title is cut to the length of the command line, whose memory it takes."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())
    with contextlib.suppress(OSError, ValueError, IndexError):  # /proc is not mounted, or hides its contents
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
        begin, end = map(int, fields[ARGUMENTS : ARGUMENTS + 2])
        if 0 < begin < end:
            ctypes.memmove(begin, title.encode()[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)
