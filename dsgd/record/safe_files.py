"""Read and write files and folders that another user may have made: only regular files of bounded size, depth and
number of values are read; writing follows no link, and writes under no other name.

A run reserves room on its disk for the summary, so a run on a full disk can still record its end. The summary is
written into the reserved file, which is then renamed: at no moment could another program take the room.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader, BufferedWriter, FileIO
from pathlib import Path
from typing import Any

import yaml

from dsgd.host.files import regular_file

ROOM, ROOM_BYTES = ".room", 1 << 14  # of the summary
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, if built in
DEPTH = 32  # of lists and mappings in each other: a configuration has 5
WORD = 2**16  # characters of one value
VALUES = 100_000  # in one document: a configuration has some hundred


def open_kept(path: Path, flags: int) -> int:
    """Return a descriptor of a file that is written in place, created if it is missing.

    flags: os.O_WRONLY or os.O_RDWR, optionally with O_APPEND. Raises OSError for a symbolic link, for a file with a
    second name, which would be written too, and unless it is a regular file."""
    flags |= os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a FIFO without a reader
            raise _link(path) from error
        raise
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise _link(path)


Content = bytes | Iterable[bytes] | Callable[[BufferedWriter], None]  # whole, in pieces, or a writing function


def write_atomically(path: Path, content: Content) -> None:
    """Replace a file in one step: after a crash there is the old file or the new one, whole. A symbolic link is
    replaced, not followed. Raises OSError, also for a path that leads to a device."""
    replace_together({path: content})


def replace_together(contents: Mapping[Path, Content], gone: Iterable[Path] = ()) -> None:
    """Replace files, each in one step, in their order, once the disk has all their contents. Raises OSError, as
    `write_atomically`; for want of room before anything is replaced. gone: files that are removed before that."""
    partials: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            check_replaceable(path)
            partial = partials[path] = path.with_name(path.name + ".partial")
            try:
                file = partial.open("xb")
            except FileExistsError:  # left by a crash, or a link that leads elsewhere
                partial.unlink()
                file = partial.open("xb")
            with file:
                if callable(content):
                    content(file)
                else:
                    file.writelines([content] if isinstance(content, bytes) else content)
                file.flush()
                os.fsync(file.fileno())
        for path in gone:
            path.unlink(missing_ok=True)
        for path, partial in partials.items():
            os.replace(partial, path)
    except OSError:
        for partial in partials.values():
            partial.unlink(missing_ok=True)  # on a full disk others need the room
        raise


@contextlib.contextmanager
def room_kept(folder: Path) -> Iterator[None]:
    """Reserve room for the summary in a folder inside of the block. Raises OSError if the disk has none."""
    path = folder / ROOM
    try:
        _fill(path, os.urandom(ROOM_BYTES))  # a file system may store zeros without any room
        yield
    finally:
        with contextlib.suppress(OSError):  # it has become the summary, or the disk cannot be written
            os.unlink(path)


def write_in_room(path: Path, content: bytes) -> None:
    """Replace a file atomically, in the reserved room of its folder.

    Without such room, or if the file system does not write in place, it is written like other files. Raises OSError."""
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


def write_all(file: FileIO, content: bytes) -> None:
    """Write to an unbuffered file. A full disk may take a part of the content and refuse the rest. Raises OSError."""
    while content:
        content = content[file.write(content) :]


def check_replaceable(path: Path) -> None:
    """Raise OSError for a path that leads to a folder or a device."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def make_inside(folder: Path, inner: str) -> Path:
    """Return a folder inside of another one, made if it is not there, to write in. inner: its path there.

    Raises OSError if a link leads out of it, there or in its files."""
    check_inside(folder, inner)
    (made := folder / inner).mkdir(parents=True, exist_ok=True)
    with os.scandir(made) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode) and (not stat.S_ISREG(status.st_mode) or status.st_nlink > 1):
                raise _link(Path(entry.path))
    return made


def check_inside(folder: Path, inner: str | Path) -> None:
    """Raise OSError if a component of a path inside of a folder is a symbolic link."""
    path = folder
    for name in Path(inner).parts:
        path /= name
        if path.is_symlink():
            raise _link(path)


def _link(path: Path) -> OSError:
    return OSError(errno.ELOOP, f"{path.name} is a link, or no regular file", str(path))


class Unbounded(ValueError):
    """Raised for a document of more than DEPTH levels or VALUES values, with one of more than WORD characters or an
    alias."""


def read_bounded(path: Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes. Raises OSError, with the kind of another file."""
    with _bounded(path, most) as (file, size):
        return file.read(size)


def read_lines(path: Path, most: int) -> Iterator[bytes]:
    """Yield the lines of a regular file of at most `most` bytes, and never have all in memory. Raises OSError, as
    `read_bounded`."""
    with _bounded(path, most) as (file, _), BufferedReader(file) as lines:
        yield from lines


@contextmanager
def _bounded(path: Path, most: int) -> Iterator[tuple[FileIO, int]]:
    with regular_file(path) as (file, size):
        if size > most:
            raise OSError(errno.EFBIG, f"{size} bytes, more than {most}", str(path))
        yield file, size


def read_end(path: Path, most: int) -> bytes:
    """Read the last bytes of a regular file, at most `most`. Raises OSError."""
    with regular_file(path) as (file, size):
        file.seek(max(0, size - most))
        return file.read(min(size, most))


def json_object(text: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None if the text is no JSON object, too deep, or has more than VALUES values."""
    if text.count(b",") + text.count(b"[") + text.count(b"{") > VALUES:  # before anything is built of them
        return None
    try:
        value = json.loads(text)
        if text.count(b"{") + text.count(b"[") > DEPTH:
            _check(value)
    except (ValueError, RecursionError):  # not JSON, or not UTF-8
        return None
    return value if isinstance(value, dict) else None


def yaml_document(text: bytes) -> Any:
    """Parse one YAML document without aliases. Raises yaml.YAMLError and Unbounded.

    Its events are counted before anything is built of them: libyaml builds lists in lists until the stack is full, and
    aliases of aliases stand for any number of values."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, LOADER)):
        if isinstance(event, yaml.AliasEvent):
            raise Unbounded("an alias")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        is_long = isinstance(event, yaml.ScalarEvent) and len(event.value) > WORD
        if depth > DEPTH or count > VALUES or is_long:
            raise Unbounded(f"more than {DEPTH} levels or {VALUES} values")
    try:
        return yaml.load(text, LOADER)
    except (ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:  # of a wrong tag
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from error


def _check(value: Any) -> None:
    """Raise Unbounded for a value of more than DEPTH levels or VALUES values."""
    level, total = [value], 0
    for _ in range(DEPTH + 1):
        total += len(level)
        if total > VALUES:
            break
        level = [outer for outer in level if isinstance(outer, (dict, list))]
        if not level:
            return
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
    raise Unbounded(f"more than {DEPTH} levels or {VALUES} values")
