"""The lock of a record folder: one holder at a time, and none once that is dead."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsgd.record.lock import FolderInUse, locked
from dsgd.record.reader import find_runs
from dsgd.record.writer import Record


def test_a_folder_is_locked_for_one_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    with locked(folder), pytest.raises(FolderInUse), locked(folder):
        pass
    assert list(folder.iterdir()) == []
    with locked(folder):
        pass


def test_readers_do_not_see_it(tmp_path: Path) -> None:
    with locked(tmp_path / "sweep" / "empty"), locked(tmp_path / "sweep" / "run"):
        Record(tmp_path / "sweep" / "run", {"nodes": 2}, ["cpu"]).finish({"status": "completed"})
        assert [run.folder.name for run in find_runs([tmp_path])] == ["run"]


def test_a_folder_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"), locked(tmp_path / "file" / "run"):
        pass
