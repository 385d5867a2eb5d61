"""A record that somebody else has written is refused in one line, at once, where it is made to fill the memory."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from dsgd.cli.plot import main as plot
from dsgd.record.reader import CONFIG_BYTES, find_runs, read_config
from dsgd.record.safe_files import DEPTH, Unbounded, json_object, read_bounded, yaml_document
from dsgd.record.writer import Record
from tests.support.records import write_record

YAML = {
    "lists in lists": b"[" * 300_000,
    "mappings in mappings": b"? " * 300_000,
    "many values": b"- 1\n" * 200_000,
    "a number": b"a: 1" + b":1" * 100_000,
}


@pytest.mark.parametrize("name", YAML)
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


@pytest.mark.parametrize("depth", [DEPTH + 1, 900, 300_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_json_that_is_too_deep_is_none(depth: int, opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    text = f'{{"x": {opening * depth}1{closing * depth}}}'.encode()
    assert json_object(text) is None
    for beside in ("", '"y": [], '):
        assert json_object(f'{{{beside}"x": {opening * (DEPTH - 1)}1{closing * (DEPTH - 1)}}}'.encode()) is not None


def test_json_of_too_many_values_is_none() -> None:
    """Lists, mappings and commas count together."""
    many = [f'{{"x": [{",".join([item] * 60_000)}]}}'.encode() for item in ("{}", "[]")]
    assert [json_object(text) for text in many] == [None, None]


def devour(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def stop(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def swell(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(2**40)


def nest(path: Path) -> None:
    path.write_text('{"status": ' + "[" * 100_000 + "\n")


DAMAGES = (devour, stop, swell, nest)


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "metrics.jsonl"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_the_command_ends_in_one_line_or_does_without(
    damage: Callable[[Path], None],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is no file is none: of a run without summary, or before its first mark."""
    monkeypatch.chdir(tmp_path)
    damage(write_record(tmp_path / "run", marks=3) / name)
    status = plot(["run", "--out", "figures", "--only", "overview", "--format", "svg"])
    said = capsys.readouterr()
    if damage in (swell, nest) or name == "config.yaml":
        assert (status, said.out, len(said.err.splitlines())) == (2, "", 1)
        assert name in said.err
        assert not Path("figures").exists()
    else:
        assert (status, said.err) == (0, "")


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


def test_a_small_file_takes_little_memory_however_large_one_may_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"few")
    tracemalloc.start()
    assert read_bounded(tmp_path / "file", 2**29) == b"few"
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
