"""What a process cannot share with those that are forked from it: open files and connections, whose position and
protocol would be one for all, and threads, which a forked process lacks.

Files can be opened once more in the forked process, where they are: `positions` and `reopen`, which `fork` calls."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DESCRIPTORS = "/proc/self/fd"
KEPT = os.O_ACCMODE | os.O_APPEND  # flags of a file that is opened once more
HARMLESS = re.compile(r"/dev/(null|zero|u?random)$|anon_inode:")  # without a position, and without a peer


@dataclass(frozen=True)
class Holdings:
    """Open descriptors, each with the name that the kernel has for it, and threads of Python's.

    A system without /proc names no descriptors."""

    descriptors: frozenset[tuple[int, str]]
    threads: frozenset[threading.Thread]

    @classmethod
    def now(cls) -> Holdings:
        """Return those of this process."""
        names = {number: _name(number) for number in (os.listdir(DESCRIPTORS) if os.path.isdir(DESCRIPTORS) else ())}
        named = ((int(number), name) for number, name in names.items() if name and not HARMLESS.match(name))
        return cls(frozenset(named), frozenset(threading.enumerate()))

    def since(self, before: Holdings) -> Holdings:
        """Return what has come since then."""
        return Holdings(self.descriptors - before.descriptors, self.threads - before.threads)

    @property
    def files(self) -> dict[int, str]:
        """Return the descriptors of files, which can be opened once more."""
        return {number: name for number, name in sorted(self.descriptors) if name.startswith("/")}

    @property
    def others(self) -> list[str]:
        """Return the names of what a forked process cannot open by itself."""
        connections = sorted(name for _, name in self.descriptors if not name.startswith("/"))
        return connections + ["a thread"] * len(self.threads)


_private: dict[int, str] = {}  # descriptors of files that every forked process opens once more


def open_in_forks(files: Mapping[int, str]) -> None:
    """Have files opened once more in every process that is forked from now on: each gets a position of its own."""
    _private.update(files)


def positions() -> dict[int, tuple[int, int]]:
    """Return position and flags of the files to open in a process that is forked now."""
    present = [number for number, name in _private.items() if _name(str(number)) == name]
    return {
        number: (os.lseek(number, 0, os.SEEK_CUR), fcntl.fcntl(number, fcntl.F_GETFL))
        for number in present
        if stat.S_ISREG(os.fstat(number).st_mode)
    }


def reopen(files: Mapping[int, tuple[int, int]]) -> None:
    """Open files once more, in the forked process, under their descriptors and where they were. Raises OSError."""
    for number, (position, flags) in files.items():
        # also of a file that has been removed, or never had a name
        other = os.open(os.path.join(DESCRIPTORS, str(number)), flags & KEPT)
        os.lseek(other, position, os.SEEK_SET)
        os.dup2(other, number, os.get_inheritable(number))
        os.close(other)


def lacking(names: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return those of some names that have no counterpart of their kind among others: socket, pipe or thread."""
    left, missing = Counter(map(_kind, others)), list[str]()
    for name in names:
        if left[_kind(name)]:
            left[_kind(name)] -= 1
        else:
            missing.append(name)
    return missing


def _kind(name: str) -> str:
    return name.partition(":")[0]  # socket:[4711], pipe:[4711]


def _name(number: str) -> str | None:
    try:
        return os.readlink(os.path.join(DESCRIPTORS, number))
    except OSError:  # closed meanwhile, as that of the listing itself
        return None
