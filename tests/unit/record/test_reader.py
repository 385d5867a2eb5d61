"""Reading records: whole ones, those of runs that go on or were killed, and broken ones."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from dsgd.record.reader import (
    find_runs,
    lines_sha256,
    read_config,
    read_last_mark,
    read_marks,
    read_status,
    read_summary,
)
from dsgd.record.writer import CONFIG, METRICS, Record
from tests.support.each_row import each_row
from tests.support.records import write_record


def test_runs_below_a_sweep_folder_are_found_in_numeric_order_and_once(tmp_path: Path):
    """Hydra numbers its jobs 0, 1, …, 10; its .hydra folders and what lies inside a run are not runs."""
    for job in (10, 2, 0):
        folder = write_record(tmp_path / "sweep" / str(job), seed=job)
        (folder / ".hydra").mkdir()
        (folder / ".hydra" / "config.yaml").write_text("nodes: 8")
        (folder / "wandb").mkdir()
        (folder / "wandb" / "summary.json").write_text("{}")
    (tmp_path / "sweep" / "multirun.yaml").write_text("nodes: 8")
    runs = find_runs([tmp_path / "sweep" / "2", tmp_path / "sweep"])
    assert [run.folder.name for run in runs] == ["2", "0", "10"]


def test_a_torn_last_line_is_a_run_still_going_on(tmp_path: Path):
    """A killed writer leaves half a line without newline: the marks before it count, and there is no summary."""
    folder = write_record(tmp_path / "killed", status="running")
    text = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(text[:30]) + text[30][:55])
    (run,) = find_runs([folder])
    assert (len(run.metrics), run.status, run.summary) == (30, "running", None)
    assert run.final("epochs") == run.metrics[-1]["epoch"] == 14.5


def test_a_last_line_without_newline_counts_if_it_is_whole(tmp_path: Path):
    folder = write_record(tmp_path / "run", status="running", marks=5)
    (folder / "metrics.jsonl").write_text((folder / "metrics.jsonl").read_text().rstrip("\n"))
    assert len(find_runs([folder])[0].metrics) == 5


def test_a_run_before_its_first_mark_is_read(tmp_path: Path):
    folder = write_record(tmp_path / "run", status="running", marks=0)
    (run,) = find_runs([folder])
    assert (run.metrics, run.final("test_loss"), run.clock) == ([], None, None)
    (folder / "metrics.jsonl").unlink()
    assert find_runs([folder])[0].metrics == []


def broken_line(folder: Path) -> None:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[11] = lines[11][:20]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


BROKEN = {
    "line": (broken_line, r"metrics\.jsonl line 12 is not a JSON object$"),
    "array": (lambda f: (f / "metrics.jsonl").write_text("[1]\n{}\n"), r"metrics\.jsonl line 1 is not a JSON object$"),
    "config gone": (lambda f: (f / "config.yaml").unlink(), r"^config\.yaml missing in "),
    "config scalar": (lambda f: (f / "config.yaml").write_text("3"), r"config\.yaml must be a YAML mapping"),
    "config not yaml": (lambda f: (f / "config.yaml").write_text("a: [1"), r"config\.yaml must be a YAML mapping"),
    "config binary": (lambda f: (f / "config.yaml").write_bytes(b"\xff\xfe\x00"), r"config\.yaml must be a YAML mapp"),
    "summary": (lambda f: (f / "summary.json").write_text("{"), r"summary\.json is not a JSON object$"),
}


@each_row("case", BROKEN)
def test_a_broken_record_is_an_error_of_one_line(case: str, tmp_path: Path):
    damage, message = BROKEN[case]
    damage(write_record(tmp_path / "run"))
    with pytest.raises(ValueError, match=message) as caught:
        find_runs([tmp_path])
    assert "\n" not in str(caught.value)


def test_a_path_without_runs_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for path, reason in (
        (tmp_path, "no folder with"),
        (tmp_path / "x", "no such folder"),
        (tmp_path / "file", "a file"),
    ):
        with pytest.raises(ValueError, match=f"^no run under {path}: .*{reason}"):
            find_runs([path])


def test_one_file_of_a_record_is_read_without_the_others(tmp_path: Path) -> None:
    """The state of a sweep needs the summary or the last mark of each run: neither its configuration nor all marks."""
    folder = write_record(tmp_path / "run", marks=4)
    (folder / CONFIG).unlink()
    broken_first = (folder / METRICS).read_bytes().replace(b"{", b"[", 1)
    (folder / METRICS).write_bytes(broken_first + b'{"epoch": 2.0, "samp')
    last = json.loads(broken_first.splitlines()[-1])
    assert last["epoch"] == 1.5
    assert read_last_mark(folder) == last
    assert lines_sha256(folder, 4) == hashlib.sha256(broken_first).hexdigest()
    assert read_status(folder) == "completed"


def test_a_record_that_has_not_begun_has_no_marks_and_no_status(tmp_path: Path) -> None:
    assert (read_marks(tmp_path), read_last_mark(tmp_path)) == ([], None)
    assert lines_sha256(tmp_path, 0) == lines_sha256(tmp_path, 3) == hashlib.sha256().hexdigest()
    assert (read_summary(tmp_path), read_status(tmp_path)) == (None, None)
    (tmp_path / METRICS).write_bytes(b'{"epoch": 0.0')
    assert read_last_mark(tmp_path) is None


def test_a_configuration_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """Numbers and texts that look like numbers, keys that are numbers, and empty groups."""
    config = {"lr": 1e-5, "name": "1e-5", "date": "2017-05-25", "slow": {3: 2.0}, "none": None, "empty": {}, "on": True}
    Record(tmp_path, config, ["cpu"]).finish({})
    assert read_config(tmp_path) == config


def test_a_summary_beside_another_configuration_than_its_own_counts_as_none(tmp_path: Path) -> None:
    """One that names none, as earlier versions wrote them, is read."""
    Record(tmp_path, {"nodes": 2}, ["cpu"]).finish({"status": "completed"})
    assert read_status(tmp_path) == "completed"
    (tmp_path / "config.yaml").write_text("nodes: 4\n")
    assert (read_summary(tmp_path), read_status(tmp_path)) == (None, None)
    assert [run.status for run in find_runs([tmp_path])] == ["running"]
    (tmp_path / "summary.json").write_text('{"status": "completed"}')
    assert read_status(tmp_path) == "completed"
