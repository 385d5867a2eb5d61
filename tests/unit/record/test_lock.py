"""The lock of a record folder: one holder at a time, and none once that is dead."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from dsgd.record.lock import FolderInUse, locked
from dsgd.record.reader import find_runs
from dsgd.record.writer import Record

PATIENCE_S = 60  # after which a test gives up


def test_a_folder_is_locked_for_one_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    with locked(folder), pytest.raises(FolderInUse), locked(folder):
        pass
    assert list(folder.iterdir()) == []
    with locked(folder):
        pass


def test_a_lock_goes_with_its_owner_and_all_that_it_has_forked(tmp_path: Path) -> None:
    ready, told = os.pipe()
    owner = os.fork()
    if owner == 0:
        try:
            with locked(tmp_path):
                if os.fork() == 0:
                    os.write(told, str(os.getpid()).encode())
                signal.pause()
        finally:
            os._exit(70)
    forked = int(os.read(ready, 20))
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    with pytest.raises(FolderInUse), locked(tmp_path):
        pass
    os.kill(forked, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with locked(tmp_path):
                break
        except FolderInUse:  # it is not quite gone
            assert time.monotonic() < deadline
            time.sleep(0.01)
    os.close(ready)
    os.close(told)


def test_readers_do_not_see_it(tmp_path: Path) -> None:
    with locked(tmp_path / "sweep" / "empty"), locked(tmp_path / "sweep" / "run"):
        Record(tmp_path / "sweep" / "run", {"nodes": 2}, ["cpu"]).finish({"status": "completed"})
        assert [run.folder.name for run in find_runs([tmp_path])] == ["run"]


def test_a_folder_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"), locked(tmp_path / "file" / "run"):
        pass
