"""The judge of records: it finds nothing in those of whole runs, and what was done to others."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsgd.record.checkpoint_file import NAME
from tests.support.prefork import Prefork
from tests.support.valid_record import problems, stored
from tests.support.watched_run import BUDGET, resume, start


def last_mark(folder: Path, **changes: Any) -> None:
    *lines, last = (folder / "metrics.jsonl").read_text().splitlines()
    lines.append(json.dumps(json.loads(last) | changes))
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def summary(folder: Path, **changes: Any) -> None:
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "torn mark": (lambda folder: cut(folder / "metrics.jsonl", 9), "torn line"),
    "no mark": (lambda folder: append(folder / "metrics.jsonl", "[1]\n"), "is no mark"),
    "samples go back": (lambda folder: last_mark(folder, samples=1), "samples goes back"),
    "bytes go back": (lambda folder: last_mark(folder, bytes_sent=1), "bytes_sent goes back"),
    "torn summary": (lambda folder: cut(folder / "summary.json", 9), "summary.json is no whole JSON"),
    "unknown status": (lambda folder: summary(folder, status="done"), "status is 'done'"),
    "no error": (lambda folder: summary(folder, status="failed"), "not one line"),
    "few samples": (lambda folder: summary(folder, samples=2, steps=1), "samples is 2, but"),
    "another loss": (lambda folder: summary(folder, test_loss=-1.0), "test_loss is -1.0"),
    "no checkpoint": (lambda folder: (folder / NAME).unlink(), "checkpoint.pt is missing"),
    "torn checkpoint": (lambda folder: cut(folder / NAME, 9), "truncated or corrupt"),
    "fewer marks than counted": (lambda folder: (folder / "metrics.jsonl").write_text(""), "checkpoint.pt counts"),
    "torn trace": (lambda folder: (folder / "trace.json").write_text("[{"), "trace.json"),
}


def test_what_is_wrong_is_found(prefork: Prefork, tmp_path: Path) -> None:
    """In the record of a run that was interrupted, and then of the one that went on."""
    watched = start(prefork, tmp_path / "run", "algo=sync", "nodes=2", BUDGET)
    watched.wait_for_marks(4)
    os.kill(watched.run.pid, signal.SIGINT)
    watched.assert_ends("interrupted", 130)
    assert problems(watched.run.folder) == []
    for name, (damage, text) in DAMAGES.items():
        folder = shutil.copytree(watched.run.folder, tmp_path / name)
        damage(folder)
        assert any(text in line for line in problems(folder)), (name, problems(folder))
    before = stored(watched.run.folder)
    assert before is not None
    resumed = resume(prefork, watched).run
    assert (resumed.wait(), problems(resumed.folder, before)) == (0, [])
    ahead = type(before)(**{**vars(before), "samples": 10**9, "messages_lost": 1})
    assert len(problems(resumed.folder, ahead)) == 2
