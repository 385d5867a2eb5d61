from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from dsgd.record.checkpoint_file import (
    NAME,
    CheckpointError,
    find_checkpoint,
    read_header,
    read_state,
    write_checkpoint,
)
from dsgd.record.writer import CONFIG, ENV, METRICS, SUMMARY, Record, commit, finite
from dsgd.record.written import write_atomically

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
    assert {key: read_header(path)[key] for key in HEADER} == HEADER
    found = read_state(path)
    assert found["progress"] == state()["progress"]
    for vector, stored in zip(found["vectors"], state()["vectors"], strict=True):  # pyright: ignore[reportArgumentType]
        assert vector.dtype == stored.dtype
        assert torch.equal(vector.nan_to_num(7), stored.nan_to_num(7))


def test_the_header_of_a_checkpoint_is_read_without_torch(tmp_path: Path) -> None:
    """Whether a configuration fits a checkpoint is said before torch is imported."""
    write_checkpoint(tmp_path, HEADER, state())
    program = (
        "import sys; from pathlib import Path; from dsgd.record.checkpoint_file import read_header; "
        f"assert read_header(Path({str(tmp_path / NAME)!r}))['lines'] == 3; assert 'torch' not in sys.modules"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


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


@pytest.mark.parametrize(
    "content", [b"hello\n", b"\xff\xfe\n\x00", b"[1, 2]\n", b"{}\n", b'{"dsgd_checkpoint": 999}\nxyz', b"\n", b"null"]
)
def test_other_files_are_no_checkpoints(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "something"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"^resume must be a checkpoint of dsgd"):
        read_header(path)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(CheckpointError, match=f"^resume must be a checkpoint or a folder with {NAME}, got {path}"):
            find_checkpoint(str(path))


def test_writing_leaves_the_file_alone_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_fills_up_while_writing_leaves_the_old_checkpoint_whole(tmp_path: Path) -> None:
    """A limit on the size of files fails the write in its midst, as a full disk does; Python ignores SIGXFSZ."""
    write_checkpoint(tmp_path, HEADER, state())
    before = (tmp_path / NAME).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 1000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            write_checkpoint(tmp_path, HEADER, {"vectors": [torch.zeros(100_000)]})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / NAME).read_bytes() == before
    assert read_header(tmp_path / NAME)["lines"] == HEADER["lines"]
    write_checkpoint(tmp_path, HEADER | {"lines": 4}, state())  # what the failed attempt left behind is in nobody's way
    assert read_header(tmp_path / NAME)["lines"] == 4


def test_a_process_killed_while_writing_leaves_the_old_checkpoint_whole(tmp_path: Path) -> None:
    """The process ends without any clean-up between writing the new bytes and putting them in place."""
    write_checkpoint(tmp_path, HEADER, state())
    before = (tmp_path / NAME).read_bytes()
    program = f"""
import os
import re
from pathlib import Path
from dsgd.record import written
written.os.fsync = lambda number: os._exit(9)
written.write_atomically(Path({str(tmp_path / NAME)!r}), b"half of the new one")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=300)
    assert ended.returncode == 9
    assert (tmp_path / f"{NAME}.partial").exists()
    assert (tmp_path / NAME).read_bytes() == before


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


@pytest.mark.parametrize("elsewhere", [False, True])
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


def test_a_commit_has_a_plus_where_what_a_run_depends_on_has_changed(tmp_path: Path) -> None:
    """Not where results have been written, as dsgd-reproduce does between two runs."""
    assert commit(tmp_path) is None
    for name in ("dsgd/a.py", "conf/a.yaml", "results/a.csv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("1")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a"]):
        subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True)
    head = commit(tmp_path)
    assert head is not None
    assert re.fullmatch("[0-9a-f]{40}", head)
    (tmp_path / "results/a.csv").write_text("2")
    (tmp_path / "dsgd/new.py").touch()
    assert commit(tmp_path) == head
    (tmp_path / "conf/a.yaml").write_text("2")
    assert commit(tmp_path) == f"{head}+"


@pytest.mark.parametrize("room", [1, 80, 200])
def test_a_disk_that_is_full_when_a_run_goes_on_leaves_its_record_as_it_was(tmp_path: Path, room: int) -> None:
    """No matter which of the files that are written at the beginning does not fit."""
    first = Record(tmp_path, {"nodes": 2}, ["cpu"])
    first.mark({"time_s": 0.0})
    first.finish({"status": "interrupted"})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            Record(tmp_path, {"nodes": 2, "why": "x" * 100}, ["cpu"], before=tmp_path, lines=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
