"""Read a large JSON object, plain or packed, event by event. The memory does not grow with the file."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from typing import Any

from dsgd.host.files import regular_file

CHUNK_BYTES = 1 << 20
MOST_CHARACTERS = 4 << 20  # of one event, or of one value outside of the events
MOST_UNPACKED = 200  # times the packed bytes: traces have 10 to 30, a bomb up to 1,000
EVENTS = "traceEvents"
PICKLE = b"\x80"  # first byte of a dump of the flight recorder, and of no text
_SPACE = re.compile("[ \t\r\n]*")


class TraceError(ValueError):
    """Says in one line why a trace cannot be used, and what the profiler needs."""


class _Text:
    """The characters of a file, from the current position on."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read, self._decode = read, getincrementaldecoder("utf-8")().decode
        self._json = json.JSONDecoder()
        self._buffer, self._at, self._ended = "", 0, False

    def peek(self) -> str:
        """Return the next character that is not white space. Raises TraceError at the end of the file."""
        while True:
            self._at = _SPACE.match(self._buffer, self._at).end()  # pyright: ignore[reportOptionalMemberAccess]
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            self._more()

    def skip(self, characters: str) -> str:
        """Return the next character, one of these, and pass it. Raises TraceError for another one."""
        if (character := self.peek()) not in characters:
            raise TraceError(f"expected one of {characters} in its JSON, got {character!r}")
        self._at += 1
        return character

    def value(self) -> Any:
        """Return the next value, and pass it. Raises TraceError if it is wrong or too long."""
        self.peek()
        while True:
            try:
                value, end = self._json.raw_decode(self._buffer, self._at)
            except RecursionError:
                raise TraceError("its JSON is nested too deeply") from None
            except ValueError as error:
                if self._ended:
                    raise TraceError(f"its JSON is wrong or cut off: {error}") from None
            else:
                if end < len(self._buffer) or self._ended:  # a number may continue in the next chunk
                    self._at = end
                    return value
            if len(self._buffer) - self._at > MOST_CHARACTERS:
                raise TraceError(f"its JSON is wrong, or an event has more than {MOST_CHARACTERS >> 20} MB")
            self._more(max(CHUNK_BYTES, len(self._buffer) - self._at))  # twice as much, or a long value takes long

    def _more(self, at_least: int = CHUNK_BYTES) -> None:
        """Add bytes of the file. Raises TraceError if there are none."""
        if self._ended:
            raise TraceError("the file is cut off: copy it again, or let the profiler write it to its end")
        parts, added = [self._buffer[self._at :]], 0
        while added < at_least and not self._ended:
            chunk = self._read()
            self._ended = not chunk
            try:
                parts.append(self._decode(chunk, self._ended))
            except UnicodeDecodeError:
                raise TraceError("it must be a text in UTF-8") from None
            added += len(chunk)
        self._buffer, self._at = "".join(parts), 0


def read_events(
    path: str, other: Callable[[str, Any], None], progress: Callable[[int], None] = lambda _: None
) -> Iterator[dict[str, Any]]:
    """Yield the events of a Kineto trace, in the order of the file.

    path: trace, packed if it begins as gzip does. other: called with name and value of each other key. progress: called
    with the number of bytes that are read of the file. Raises TraceError, without the path."""
    try:
        with regular_file(path) as (file, size):
            head = file.read(2)
            if head[:1] == PICKLE:
                option = "trace with torch.profiler; dsgd-calibrate --from-trace prints its sizes"
                raise TraceError(f"it is a pickle, as the flight recorder dumps it, without durations: {option}")
            packed = head == b"\x1f\x8b"
            file.seek(0)
            unpacked = gzip.GzipFile(fileobj=file) if packed else file
            total = 0

            def read() -> bytes:
                nonlocal total
                chunk = unpacked.read(CHUNK_BYTES)
                total += len(chunk)
                if packed and total > MOST_UNPACKED * max(size, CHUNK_BYTES):
                    raise TraceError(f"it unpacks to more than {MOST_UNPACKED} times its size, as no trace does")
                progress(file.tell())
                return chunk

            yield from _events(_Text(read), other)
    except (OSError, EOFError, zlib.error) as error:  # gzip raises EOFError for a file that is cut off
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(f"it cannot be read: {reason}") from None


def _events(text: _Text, other: Callable[[str, Any], None]) -> Iterator[dict[str, Any]]:
    if text.peek() != "{":
        raise TraceError(f"it must be a JSON object with {EVENTS}, as export_chrome_trace writes it")
    has_events, separator = False, text.skip("{")
    while separator != "}":
        if separator == "{" and text.peek() == "}":
            break
        if text.peek() != '"':
            raise TraceError(f"expected a key in its JSON, got {text.peek()!r}")
        key = text.value()
        text.skip(":")
        if key == EVENTS:
            has_events = True
            yield from _items(text)
        else:
            other(key, text.value())
        separator = text.skip(",}")
    if not has_events:
        raise TraceError(f"it has no {EVENTS}: it must be what profiler.export_chrome_trace writes")


def _items(text: _Text) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list."""
    separator = text.skip("[")
    while separator != "]":
        if separator == "[" and text.peek() == "]":
            text.skip("]")
            return
        item = text.value()
        if not isinstance(item, dict):
            raise TraceError(f"{EVENTS} must be a list of objects, got {str(item)[:40]!r}")
        yield item
        separator = text.skip(",]")
