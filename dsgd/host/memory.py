"""Memory that this machine, or the control group of this process, offers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def total_memory(root: Path = ROOT) -> int:
    """Return the bytes of memory of the machine, or the limit of the control group, whichever is less.

    root: of the file system, where proc/ and sys/ are. Raises OSError where the system has no proc/."""
    limits = (limit for limit, _ in _groups(root))
    return min(_meminfo(root, "MemTotal"), *limits)


def available_memory(root: Path = ROOT) -> int:
    """Return the bytes of memory that this process can still take without swapping. As `total_memory`."""
    left = (limit - used for limit, used in _groups(root))
    return max(0, min(_meminfo(root, "MemAvailable"), *left))


def _meminfo(root: Path, name: str) -> int:
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use of the control group (version 2) of this process and of those around it. The use leaves out
    cached files, which the kernel drops when memory is short. A group without a limit has the largest number."""
    yield 2**63, 0
    lines = (
        (root / "proc/self/cgroup").read_text(encoding="ascii").splitlines()
        if (root / "proc/self/cgroup").is_file()
        else []
    )
    path = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    top = root / "sys/fs/cgroup"
    for folder in (top / path, *(top / path).parents):
        if (folder / "memory.max").is_file() and (
            limit := (folder / "memory.max").read_text(encoding="ascii").strip()
        ) != "max":
            used = int((folder / "memory.current").read_text(encoding="ascii"))
            counts = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
            yield int(limit), used - int(counts.get("inactive_file", 0))
