"""A record that somebody else has written is refused in one line, at once, where it is made to fill the memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsgd.record.bounded import DEPTH, Unbounded, json_object, read_bounded, yaml_document
from dsgd.record.reader import CONFIG_BYTES, find_runs, read_config
from tests.support.each_row import each_row
from tests.support.records import write_record

YAML = {
    "lists in lists": b"[" * 300_000,
    "lists in lists, by lines": b"- " * 300_000,
    "mappings in mappings": b"? " * 300_000,
    "many values": b"- 1\n" * 200_000,
    "a number": b"a: 1" + b":1" * 100_000,
}


@each_row("name", YAML)
def test_a_yaml_bomb_is_refused_before_anything_is_built_of_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(Unbounded, match=r"^more than 32 levels or 100000 values$"):
        yaml_document(YAML[name])
    folder = write_record(tmp_path / "run", marks=3)
    (folder / "config.yaml").write_bytes(YAML[name])
    with pytest.raises(ValueError, match=r"config\.yaml must be a YAML mapping, got: more than 32 levels"):
        read_config(folder)


def test_what_is_tagged_wrongly_is_an_error_of_yaml(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run", marks=3)
    for text in ("!!bool zz", "!!timestamp zz", "!!int zz", "2001-99-99", "9" * 5000, "!!python/object:os.system x"):
        (folder / "config.yaml").write_text(f"a: {text}")
        with pytest.raises(ValueError, match=r"^[^\n]*config\.yaml must be a YAML mapping, got: [^\n]*$"):
            read_config(folder)


def test_aliases_are_refused_and_never_written(tmp_path: Path) -> None:
    """Nine of nine each, nine times over, are a thousand million values."""
    for text in (b"a: &a [1]\nb: *a", b"a: &a [*a]", b"a: &a {b: 1}\nc: {<<: *a}"):
        with pytest.raises(Unbounded, match=r"^an alias$"):
            yaml_document(text)
    shared = [1, 2]
    Record(tmp_path, {"a": shared, "b": {"c": shared}}, ["cpu"]).finish({})
    assert read_config(tmp_path) == {"a": shared, "b": {"c": shared}}


@each_row("depth", [DEPTH + 1, 900, 300_000])
@each_row("opening", ["[", '{"a":'])
def test_json_that_is_too_deep_is_none(depth: int, opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    text = f'{{"x": {opening * depth}1{closing * depth}}}'.encode()
    assert json_object(text) is None
    assert json_object(f'{{"x": {opening * 5}1{closing * 5}}}'.encode()) is not None


def test_a_file_is_read_to_its_limit_and_not_beyond(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert read_bounded(path, 10) == b"x" * 10
    with pytest.raises(OSError, match="10 bytes, more than 9"):
        read_bounded(path, 9)
    folder = write_record(tmp_path / "run", marks=3)
    (folder / "config.yaml").write_text("#" * (CONFIG_BYTES + 1))
    with pytest.raises(ValueError, match=rf"config\.yaml must be readable, got: {CONFIG_BYTES + 1} bytes, more than"):
        find_runs([folder])
    (folder / "config.yaml").write_text(json.dumps({"a": 1}))
    assert find_runs([folder])[0].config == {"a": 1}
