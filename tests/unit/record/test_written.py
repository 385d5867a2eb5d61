"""Whatever stands in a folder in place of a file, writing there changes nothing else, and reading waits for nobody."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dsgd.record.checkpoint_file import write_checkpoint
from dsgd.record.lock import LOCK, locked
from dsgd.record.safe_files import make_inside, open_kept, write_atomically
from dsgd.record.writer import METRICS, Record
from studies.reproduction import archive
from tests.support.each_row import each_row

SMALL = ["experiment=quadratic", "engine=sim", "nodes=2", "budget.steps=4", "eval.every_steps=2"]
PLACES: dict[str, Callable[[Path, Path], None]] = {
    "symbolic link": lambda path, victim: path.symlink_to(victim),
    "relative link": lambda path, victim: path.symlink_to(os.path.relpath(victim, path.parent)),
    "second name": lambda path, victim: path.hardlink_to(victim),
    "link to nothing": lambda path, victim: path.symlink_to(victim.parent / "not there"),
    "FIFO": lambda path, victim: os.mkfifo(path),
}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user's, outside of every folder that is written."""
    path = tmp_path / "precious" / "victim"
    path.parent.mkdir()
    path.write_text("precious")
    return path


def intact(victim: Path) -> bool:
    return victim.read_text() == "precious" and list(victim.parent.iterdir()) == [victim]


@each_row("kind", PLACES)
def test_a_file_that_is_replaced(kind: str, victim: Path, tmp_path: Path) -> None:
    """Neither what stands in its place is written, nor what stands in that of its half."""
    for name in ("file", "file.partial"):
        if name == "file" and kind == "FIFO":
            continue
        PLACES[kind](tmp_path / name, victim)
        write_atomically(tmp_path / "file", [b"n", b"ew"])
        assert not (tmp_path / "file").is_symlink()
        assert (tmp_path / "file").read_bytes() == b"new"
        (tmp_path / "file").unlink()
    assert intact(victim)
    assert list(tmp_path.iterdir()) == []


@each_row("device", ["/dev/null", "FIFO", "a link to a device"])
def test_a_device_is_not_replaced(device: str, tmp_path: Path) -> None:
    path = Path(device) if device.startswith("/") else tmp_path / "file"
    if device == "FIFO":
        os.mkfifo(path)
    elif path.parent == tmp_path:
        path.symlink_to("/dev/null")
    before = os.lstat(path)
    with pytest.raises(OSError, match="not a regular file"):
        write_atomically(path, b"new")
    assert os.path.samestat(before, os.lstat(path))


@each_row("kind", PLACES)
def test_a_file_that_is_written_in_place(kind: str, victim: Path, tmp_path: Path) -> None:
    PLACES[kind](tmp_path / "file", victim)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        with pytest.raises(OSError, match="file is a link, or no regular file"):
            open_kept(tmp_path / "file", flags)
    assert intact(victim)


@each_row("kind", PLACES)
def test_a_folder_of_many_files(kind: str, victim: Path, tmp_path: Path) -> None:
    assert make_inside(tmp_path, "a/logs") == tmp_path / "a/logs"
    PLACES[kind](tmp_path / "a/logs/worker_0.log", victim)
    with pytest.raises(OSError, match=r"worker_0\.log is a link, or no regular file"):
        make_inside(tmp_path, "a/logs")
    (tmp_path / "b").symlink_to(victim.parent)
    for inner in ("b", "b/logs"):
        with pytest.raises(OSError, match="b is a link"):
            make_inside(tmp_path, inner)
    assert intact(victim)


def test_a_lock_beside_a_link_is_the_folders(victim: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(victim)
    with pytest.raises(OSError, match=r"\.lock is a link"), locked(tmp_path / "run"):
        pass
    assert intact(victim)


def test_a_link_in_place_of_the_metrics_while_it_runs(victim: Path, tmp_path: Path) -> None:
    record = Record(tmp_path, {"nodes": 2}, ["cpu"])
    (tmp_path / METRICS).unlink()
    (tmp_path / METRICS).symlink_to(victim)
    record.mark({"time_s": 0.0})
    record.finish({"status": "completed"})
    write_checkpoint(tmp_path, {"engine": "sim"}, {})
    assert intact(victim)


def test_an_archive_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "jin2016.jsonl.gz")
    with pytest.raises(ValueError, match="not a regular file"):
        archive.read(tmp_path / "jin2016.jsonl.gz")


def test_a_new_file_has_the_rights_that_the_user_gives_to_new_files(tmp_path: Path) -> None:
    os.close(open_kept(tmp_path / "file", os.O_WRONLY))
    (tmp_path / "other").touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode
