"""Read files that somebody else may have written: regular ones, of bounded size, depth and number of values."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

import yaml

from dsgd.host.files import regular_file

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, if built in
DEPTH = 32  # of lists and mappings in each other: a configuration has 5
WORD = 2**16  # characters of one value
VALUES = 100_000  # in one document: a configuration has some hundred


class Unbounded(ValueError):
    """Raised for a document of more than DEPTH levels or VALUES values, with one of more than WORD characters or an
    alias."""


def read_bounded(path: Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes. Raises OSError, whose strerror says what else it is."""
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
    """Read the last bytes of a regular file, at most so many. Raises OSError."""
    with regular_file(path) as (file, size):
        file.seek(max(0, size - most))
        return file.read(min(size, most))


def json_object(text: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None if the text is anything else, too deep, or of more than VALUES values."""
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
    except (ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:  # of what is tagged wrongly
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
        level = [inner for outer in level for inner in _inner(outer)]
    raise Unbounded(f"more than {DEPTH} levels or {VALUES} values")


def _inner(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value
