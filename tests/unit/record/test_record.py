from __future__ import annotations

import json
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import yaml

from dsgd.record import safe_files
from dsgd.record.checkpoint_file import (
    NAME,
    CheckpointError,
    check_state,
    find_checkpoint,
    read_header,
    read_state,
    with_header,
    write_checkpoint,
)
from dsgd.record.writer import CONFIG, ENV, METRICS, SUMMARY, Record, finite
from tests.support.each_row import each_row

HEADER = {"config": {"nodes": 2, "algo": {"name": "sync"}}, "lines": 3, "wall_s": 1.5}


def strict(text: str | bytes) -> object:
    """JSON as the standard has it: without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def state() -> dict[str, object]:
    vectors = [torch.arange(5, dtype=torch.float64) / 3, torch.empty(0), torch.full((3,), torch.nan)]
    return {"progress": {"marks": 3, "last_mark": [0.1, 64]}, "vectors": vectors}


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, HEADER, state())
    path = find_checkpoint(str(tmp_path))
    assert path == find_checkpoint(str(path)) == tmp_path / NAME
    assert read_header(path) == {"dsgd_checkpoint": 2, "dsgd": version("dsgd"), **HEADER}
    assert with_header(path, HEADER) == path.read_bytes()  # the same, made from the payload
    found = read_state(path)
    assert found["progress"] == state()["progress"]
    for vector, stored in zip(found["vectors"], state()["vectors"], strict=True):  # pyright: ignore[reportArgumentType]
        assert vector.dtype == stored.dtype
        assert torch.equal(vector.nan_to_num(7), stored.nan_to_num(7))


def test_a_state_is_checked_in_every_part() -> None:
    progress = {"marks": 3, "next_samples": 1, "next_time": 1, "recent": []}
    whole = {"fingerprint": {"events": 7}, "progress": progress, "vectors": [torch.zeros(2)]}
    check_state(whole, "sim", 1, Path("c.pt"))
    wrong = ({"fingerprint": {}}, {"progress": {**progress, "marks": "3"}}, {"vectors": [1.0]})
    for part in wrong:
        with pytest.raises(CheckpointError, match=r"^resume must be a checkpoint"):
            check_state(whole | part, "sim", 1, Path("c.pt"))


def test_a_checkpoint_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, HEADER, state())
    path = tmp_path / NAME
    whole = path.read_bytes()
    first_line = whole.index(b"\n")
    for length in (0, 1, first_line // 2, first_line, first_line + 1, (first_line + len(whole)) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"^resume must be a [^\n]*$"):
            read_header(path)


def test_a_checkpoint_with_one_wrong_byte_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, HEADER, state())
    path = tmp_path / NAME
    whole = bytearray(path.read_bytes())
    number = whole.index(b'"lines": ') + len(b'"lines": ')  # the header stays JSON, and says something else
    for place in (number, whole.index(b"\n") + 1, len(whole) // 2, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="truncated or corrupt"):
            read_header(path)


@each_row("line, said", [({"dsgd_checkpoint": 1}, "0.2.0 or before"), ({"dsgd_checkpoint": 7, "dsgd": "9.1"}, "9.1")])
def test_a_checkpoint_of_another_version_is_refused_by_naming_both(
    line: dict[str, object], said: str, tmp_path: Path
) -> None:
    path = tmp_path / NAME
    path.write_bytes(json.dumps({**line, **HEADER}).encode() + b"\nxyz")
    ours = f"dsgd {version('dsgd')} (format 2)"
    got = f"{path} of dsgd {said} (format {line['dsgd_checkpoint']})"
    with pytest.raises(CheckpointError, match=f"^{re.escape(f'resume must be a checkpoint of {ours}, got {got}')}$"):
        read_header(path)


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """A limit on the size of files fails a write in its midst, as a full disk does; Python ignores SIGXFSZ."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@each_row("room", [100, 5000, 300_000])
def test_a_disk_that_fills_up_while_writing_leaves_the_old_checkpoint_whole(tmp_path: Path, room: int) -> None:
    """Within the header, the archive or its last vector."""
    write_checkpoint(tmp_path, HEADER, state())
    before = (tmp_path / NAME).read_bytes()
    with full_disk(room):
        write_checkpoint(tmp_path, HEADER, {"vectors": [torch.zeros(100_000)]})
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).read_bytes() == before
    assert read_header(tmp_path / NAME)["lines"] == HEADER["lines"]
    write_checkpoint(tmp_path, HEADER | {"lines": 4}, state())  # what the failed attempt left behind is in nobody's way
    assert read_header(tmp_path / NAME)["lines"] == 4


def test_an_end_while_writing_leaves_the_old_checkpoint_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between writing the new bytes and putting them in place: what is left behind is in nobody's way."""

    def end(number: int) -> None:
        raise KeyboardInterrupt

    write_checkpoint(tmp_path, HEADER, state())
    before = (tmp_path / NAME).read_bytes()
    monkeypatch.setattr(safe_files.os, "fsync", end)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path, HEADER, {"vectors": []})
    assert (tmp_path / NAME).read_bytes() == before
    monkeypatch.undo()
    write_checkpoint(tmp_path, HEADER | {"lines": 4}, state())
    assert read_header(tmp_path / NAME)["lines"] == 4


def test_a_record_is_whole_at_every_moment(tmp_path: Path) -> None:
    """Append-only and readable while the run goes on: after each mark its line is on disk, complete."""
    folder = tmp_path / "run"
    record = Record(folder, {"nodes": 2, "algo": {"name": "sync"}}, ["cuda:0", "cuda:1"])
    assert yaml.safe_load((folder / CONFIG).read_text()) == {"nodes": 2, "algo": {"name": "sync"}}
    environment = strict((folder / ENV).read_text())
    assert isinstance(environment, dict)
    assert {"dsgd", "commit", "python", "torch", "host", "devices"} <= environment.keys()
    assert environment["devices"] == ["cuda:0", "cuda:1"]
    for index in range(3):
        line = record.mark({"time_s": index / 3, "samples": index})
        lines = (folder / METRICS).read_text().splitlines()
        assert len(lines) == index + 1
        assert strict(lines[-1]) == line
    assert not (folder / SUMMARY).exists()
    written = record.finish({"status": "completed", "time_s": 1.0})
    assert strict((folder / SUMMARY).read_text()) == written
    assert written["wall_s"] >= 0


def test_numbers_that_json_does_not_have_become_null(tmp_path: Path) -> None:
    record = Record(tmp_path / "run", {}, ["cpu"])
    record.mark({"train_loss": float("nan"), "test_loss": float("inf"), "lr": 0.5})
    record.finish({"status": "diverged", "train_loss": float("-inf")})
    line = strict((tmp_path / "run" / METRICS).read_text())
    assert isinstance(line, dict)
    assert (line["train_loss"], line["test_loss"], line["lr"]) == (None, None, 0.5)
    summary = strict((tmp_path / "run" / SUMMARY).read_text())
    assert isinstance(summary, dict)
    assert summary["train_loss"] is None
    assert finite({"a": 1, "b": float("nan"), "c": "nan"}) == {"a": 1, "b": None, "c": "nan"}


@each_row("elsewhere", [False, True])
def test_a_resumed_record_keeps_the_lines_that_the_checkpoint_knows(tmp_path: Path, elsewhere: bool) -> None:
    """Marks made after the checkpoint, and a line cut off by a crash, will be made again and go. Host time goes on."""
    old = tmp_path / "old"
    record = Record(old, {"nodes": 2}, ["cpu"])
    kept = [json.dumps(record.mark({"samples": samples})) for samples in (0, 10, 20)][:2]
    record.finish({"status": "interrupted"})
    with (old / METRICS).open("a") as file:
        file.write('{"samples": 3')
    new = tmp_path / "new" if elsewhere else old
    before = (old / METRICS).read_bytes()
    resumed = Record(new, {"nodes": 2}, ["cpu"], before=old, lines=2, wall_s=100.0)
    assert not (new / SUMMARY).exists()
    line = resumed.mark({"samples": 20})
    assert line["wall_s"] >= 100.0
    assert (new / METRICS).read_text().splitlines() == [*kept, json.dumps(line)]
    if elsewhere:
        assert (old / METRICS).read_bytes() == before
        assert (old / SUMMARY).exists()
    resumed.finish({"status": "completed"})
    assert os.listdir(tmp_path / "new") if elsewhere else not (tmp_path / "new").exists()


@each_row("room", [1, 80, 200])
def test_a_disk_that_is_full_when_a_run_goes_on_leaves_its_record_as_it_was(tmp_path: Path, room: int) -> None:
    """No matter which of the files that are written at the beginning does not fit."""
    first = Record(tmp_path, {"nodes": 2}, ["cpu"])
    first.mark({"time_s": 0.0})
    first.finish({"status": "interrupted"})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with full_disk(room):
        Record(tmp_path, {"nodes": 2, "why": "x" * 100}, ["cpu"], before=tmp_path, lines=1)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
