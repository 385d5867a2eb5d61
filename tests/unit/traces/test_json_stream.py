"""Events come out of a file as json has them, in bounded memory; any other file ends in one error."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsgd.traces import json_stream
from dsgd.traces.json_stream import TraceError, read_events
from tests.support.each_row import each_row

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
SMALL = {"schemaVersion": 1, "traceEvents": [{"name": "é", "ts": 12.5}, {}, {"args": {"x": [1, "]}"]}}], "n": -3.25}


def read(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    others: dict[str, Any] = {}
    return [*read_events(str(path), others.__setitem__)], others


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    before=st.dictionaries(st.text(), JSON, max_size=3),
    events=st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=5),
    after=st.dictionaries(st.text(), JSON, max_size=3),
    chunk=st.integers(1, 40),
    indent=st.sampled_from([None, 2]),
    packed=st.booleans(),
)
def test_events_are_what_json_reads(
    before: dict[str, Any], events: list[Any], after: dict[str, Any], chunk: int, indent: int | None, packed: bool,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Wherever a chunk ends: in the middle of a number, an escape or a character."""
    others = {key: value for key, value in (before | after).items() if key != "traceEvents"}
    whole = {key: others[key] for key in before if key in others} | {"traceEvents": events} | others
    content = json.dumps(whole, ensure_ascii=False, indent=indent).encode("utf-8", "surrogatepass")
    try:
        content.decode()
    except UnicodeDecodeError:
        return
    path = tmp_path / "x.json"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "CHUNK_BYTES", chunk)
        assert read(path) == (events, others)


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_is_cut_off_anywhere_is_refused(packed: bool, tmp_path: Path) -> None:
    content = json.dumps(SMALL).encode()
    content = gzip.compress(content) if packed else content
    path = tmp_path / "x.json"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(TraceError):
            read(path)
    path.write_bytes(content)
    assert read(path)[0] == SMALL["traceEvents"]


@each_row(
    ("content", "rule"),
    [
        (b"[]", "it must be a JSON object with traceEvents"),
        (b'{"schemaVersion": 1}', "it has no traceEvents"),
        (b'{"traceEvents": [3]}', "traceEvents must be a list of objects, got '3'"),
        (b'{"traceEvents": {}}', "expected one of [ in its JSON, got '{'"),
        (b'{"traceEvents": [{} {}]}', "expected one of ,] in its JSON, got '{'"),
        (b'{"traceEvents": [], 3: 4}', "expected a key in its JSON, got '3'"),
        (b'{"traceEvents": [{"x": ' + b"[" * 100_000, "its JSON is nested too deeply"),
        (b'{"traceEvents": [{"x": "\xff"}]}', "it must be a text in UTF-8"),
        (b'{"traceEvents": [{"x": ' + b"1" * 5000 + b"}]}", "its JSON is wrong"),
        (b"\x1f\x8bwrong", "it cannot be read"),
        (b"", "the file is cut off"),
    ],
)  # fmt: skip
def test_other_files_end_in_one_error(content: bytes, rule: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as error:
        read(path)
    assert rule in str(error.value)


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    """A FIFO without a writer keeps no reader waiting."""
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "missing", "."):
        with pytest.raises(TraceError, match="it cannot be read: "):
            read(tmp_path / name)


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 MB of objects, if all events were kept."""
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 1 << 16)
    path = tmp_path / "x.json.gz"
    line = json.dumps({"ph": "X", "name": "aten::mm", "args": {"Input Dims": [[1024, 1024]] * 8}}).encode()
    with gzip.open(path, "wb", 1) as file:
        file.write(b'{"traceEvents": [' + b",".join(line + b" " * (k % 97) for k in range(20_000)) + b"]}")
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_events(str(path), lambda *_: None)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@each_row(
    ("begin", "filler", "rule"),
    [
        (b'{"traceEvents": [', b" ", "it unpacks to more than 200 times its size"),
        (b'{"traceEvents": [{"name": "', b"a", "an event has more than"),
        (b'{"traceEvents": [{"x": [', b"[],", "an event has more than"),
    ],
)
def test_a_bomb_is_refused_in_bounded_memory(
    begin: bytes, filler: bytes, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A packed file of 10 kB with 20 MB in it; with limits a sixteenth of the real ones, which take as long."""
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 1 << 16)
    monkeypatch.setattr(json_stream, "MOST_CHARACTERS", 1 << 18)
    path = tmp_path / "x.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(begin)
        for _ in range(20):
            file.write(filler * ((1 << 20) // len(filler)))
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match=rule):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
