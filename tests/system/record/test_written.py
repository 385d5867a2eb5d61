"""Whatever stands in a folder in place of a file, no command writes elsewhere."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dsgd.cli.sweep import main as sweep
from dsgd.comparison.command import main as compare
from dsgd.record.lock import LOCK
from dsgd.record.safe_files import ROOM
from dsgd.record.writer import CONFIG, ENV, METRICS, SUMMARY, TRACE
from tests.support.command import call, refusal, summary
from tests.support.each_row import each_row
from tests.support.records import write_record
from tests.unit.record.test_written import SMALL, intact


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user's, outside of every folder that is written."""
    path = tmp_path / "precious" / "victim"
    path.parent.mkdir()
    path.write_text("precious")
    return path


def test_the_logs_of_real_processes(victim: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "worker_1.log").symlink_to(victim)
    result = call(*SMALL, "engine=dist", f"hydra.run.dir={folder}")
    assert result.status == 1
    assert "worker_1.log is a link, or no regular file" in result.err
    assert "Traceback" not in result.err
    assert intact(victim)


@pytest.mark.parametrize("name", ["manifest.lock", "manifest.jsonl", "logs", "jobs", "runs"])
def test_a_sweep_on_slurm(
    name: str, victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    for command in ("sbatch", "scontrol", "squeue"):
        (tmp_path / "bin" / command).write_text("#!/bin/sh\necho 7\n")
        (tmp_path / "bin" / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / name).symlink_to(victim)
    assert sweep(["submit", "--folder", str(folder), *SMALL]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(folder) in line
    assert intact(victim)


def test_what_dsgd_compare_has_kept_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "comparison").mkdir()
    os.mkfifo(tmp_path / "comparison" / "comparison.json")
    assert compare(["algo=sync,gossip", *SMALL, "--folder", str(tmp_path / "comparison")]) == 2


def test_pages_figures_and_tables_are_written_by_the_module_that_looks_first() -> None:
    """dsgd.record.safe_files: unit/record/test_written has what it does."""
    writes = re.compile(r"\.write_(text|bytes)\(|open\([^)]*[\"'][wax]")
    root = Path(__file__).parents[3]
    folders = ("dsgd/report", "dsgd/comparison", "dsgd/cli", "studies")
    sources = [path for folder in folders for path in (root / folder).rglob("*.py")]
    assert [str(path) for path in sources if writes.search(path.read_text())] == []


FILES = [LOCK, ROOM, CONFIG, ENV, METRICS, SUMMARY, TRACE, "checkpoint.pt"]
FILES += [f"{name}.partial" for name in FILES if name not in (LOCK, ROOM, SUMMARY)]


@each_row("name", FILES)
def test_a_run_and_every_file_of_its_record(name: str, victim: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / name).symlink_to(victim)
    result = call(*SMALL, "trace=true", "engine.keep_checkpoint=true", "resume=auto", f"hydra.run.dir={folder}")
    assert intact(victim)
    assert "Traceback" not in result.err
    if result.status == 0:
        assert summary(folder)["status"] == "completed"
        assert not [path for path in folder.iterdir() if path.is_symlink() or path.name.endswith(".partial")]
    else:
        assert f"{folder}" in result.err.splitlines()[-1]


def test_a_sweep_on_this_machine(victim: Path, tmp_path: Path) -> None:
    folders = [f"hydra.sweep.dir={tmp_path}/sweep", "hydra.sweep.subdir=${hydra.job.num}"]
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "1").symlink_to(victim.parent)
    rule = f"hydra.sweep.dir must be a folder without links to elsewhere, got {tmp_path}/sweep (1 is a link"
    assert refusal("-m", "algo=sync,gossip", *SMALL, *folders).startswith(rule)
    assert intact(victim)


def test_the_name_of_a_run_in_wandb(victim: Path, tmp_path: Path) -> None:
    tracker = pytest.importorskip("dsgd.record.trackers.wandb")
    folder = tmp_path / "run"
    assert call(*SMALL, "wandb.mode=disabled", f"hydra.run.dir={folder}").status == 0
    text = (folder / CONFIG).read_text().replace("mode: disabled", "mode: offline")
    (folder / CONFIG).write_text(text)
    (folder / "wandb").symlink_to(victim.parent)
    with pytest.raises(OSError, match="wandb is a link"):
        tracker.init(folder)
    (folder / f"{tracker.RUN_ID}.partial").symlink_to(victim)
    with pytest.raises(OSError, match="wandb is a link"):
        tracker.init(folder)
    assert intact(victim)


def test_a_checkpoint_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    write_record(tmp_path / "run", marks=3)
    os.mkfifo(tmp_path / "run" / "checkpoint.pt")
    assert call(f"resume={tmp_path}/run").status == 2
    assert call(f"resume={tmp_path}/run/checkpoint.pt").status == 2
