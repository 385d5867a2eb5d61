"""Whatever stands in a folder in place of a file, writing there changes nothing else, and reading waits for nobody."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dsgd.cli.compare import main as compare
from dsgd.cli.plot import main as plot
from dsgd.cli.sweep import main as sweep
from dsgd.record.checkpoint_file import write_checkpoint
from dsgd.record.lock import LOCK, locked
from dsgd.record.room import ROOM
from dsgd.record.writer import CONFIG, ENV, METRICS, SUMMARY, TRACE, Record
from dsgd.record.written import make_inside, open_kept, write_atomically
from studies.reproduction import archive
from tests.support.command import call, summary
from tests.support.long import long_but
from tests.support.records import write_record

SMALL = ["experiment=quadratic", "engine=sim", "nodes=2", "budget.steps=4", "eval.every_steps=2"]
PLACES: dict[str, Callable[[Path, Path], None]] = {
    "symbolic link": lambda path, victim: path.symlink_to(victim),
    "relative link": lambda path, victim: path.symlink_to(os.path.relpath(victim, path.parent)),
    "second name": lambda path, victim: path.hardlink_to(victim),
    "link to nothing": lambda path, victim: path.symlink_to(victim.parent / "not there"),
    "FIFO": lambda path, victim: os.mkfifo(path),
}
KINDS = pytest.mark.parametrize("kind", PLACES)
MAIN_KINDS = pytest.mark.parametrize("kind", long_but(["symbolic link"], list(PLACES)))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user's, outside of every folder that is written."""
    path = tmp_path / "precious" / "victim"
    path.parent.mkdir()
    path.write_text("precious")
    return path


def intact(victim: Path) -> bool:
    return victim.read_text() == "precious" and list(victim.parent.iterdir()) == [victim]


@KINDS
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
    assert list(tmp_path.iterdir()) == [victim.parent]


@pytest.mark.parametrize("device", ["/dev/null", "FIFO", "a link to a device"])
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


@KINDS
def test_a_file_that_is_written_in_place(kind: str, victim: Path, tmp_path: Path) -> None:
    PLACES[kind](tmp_path / "file", victim)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        with pytest.raises(OSError, match="file is a link, or no regular file"):
            open_kept(tmp_path / "file", flags)
    assert intact(victim)


@KINDS
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


FILES = [LOCK, ROOM, CONFIG, ENV, METRICS, SUMMARY, TRACE, "checkpoint.pt"]
FILES += [f"{name}.partial" for name in FILES if name not in (LOCK, ROOM, SUMMARY)]


@MAIN_KINDS
@pytest.mark.parametrize("name", FILES)
def test_a_run_and_every_file_of_its_record(name: str, kind: str, victim: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    PLACES[kind](folder / name, victim)
    result = call(*SMALL, "trace=true", "engine.keep_checkpoint=true", "resume=auto", f"hydra.run.dir={folder}")
    assert intact(victim)
    assert "Traceback" not in result.err
    if result.status == 0:
        assert summary(folder)["status"] == "completed"
        assert not [path for path in folder.iterdir() if path.is_symlink() or path.name.endswith(".partial")]
    else:
        assert f"{folder}" in result.err.splitlines()[-1]


def test_a_folder_that_the_user_has_linked_is_used(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    assert call(*SMALL, f"hydra.run.dir={tmp_path}/run").status == 0
    assert summary(tmp_path / "disk")["status"] == "completed"


@MAIN_KINDS
def test_the_logs_of_real_processes(kind: str, victim: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    PLACES[kind](folder / "logs" / "worker_1.log", victim)
    result = call(*SMALL, "engine=dist", f"hydra.run.dir={folder}")
    assert result.status == 1
    assert "worker_1.log is a link, or no regular file" in result.err
    assert "Traceback" not in result.err
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


@MAIN_KINDS
def test_figures_tables_and_pages(kind: str, victim: Path, tmp_path: Path) -> None:
    folder, out = write_record(tmp_path / "run", marks=3), tmp_path / "out"
    assert plot([str(folder), "--out", str(out), "--format", "png,svg"]) == 0
    names = sorted(path.name for path in out.iterdir())
    assert {"summary.csv", "summary.md", "summary.tex"} < {*names}
    for path in out.iterdir():
        path.unlink()
        PLACES[kind](path.with_name(path.name + ".partial"), victim)
        if kind != "FIFO":
            PLACES[kind](path, victim)
    assert plot([str(folder), "--out", str(out), "--format", "png,svg"]) == 0
    assert sorted(path.name for path in out.iterdir()) == names
    PLACES[kind](tmp_path / "page.html.partial", victim)
    assert plot([str(folder), "--html", str(tmp_path / "page.html")]) == 0
    assert intact(victim)


@MAIN_KINDS
def test_the_files_of_a_comparison(kind: str, victim: Path, tmp_path: Path) -> None:
    line = ["algo=sync,gossip", *SMALL, "compare.tune={}", "compare.seeds=1", "target.loss=0.5"]
    line += ["cluster.gradient_s=0.01", "--folder", str(tmp_path / "contest")]
    assert compare(line) == 0
    for path in (tmp_path / "contest").iterdir():
        if path.is_file() and path.name != "comparison.json":
            path.unlink()
            PLACES[kind](path.with_name(path.name + ".partial"), victim)
    assert compare(line) == 0
    assert intact(victim)
    runs = tmp_path / "contest" / "runs"
    moved = runs.rename(tmp_path / "moved")
    runs.symlink_to(moved)
    assert compare(line) == 2


def test_a_sweep_on_this_machine(victim: Path, tmp_path: Path) -> None:
    line = [
        "-m",
        "algo=sync,gossip",
        *SMALL,
        f"hydra.sweep.dir={tmp_path}/sweep",
        "hydra.sweep.subdir=${hydra.job.num}",
    ]
    (tmp_path / "sweep").mkdir()
    for name, target in (("1", victim.parent), ("multirun.yaml", victim)):
        (tmp_path / "sweep" / name).symlink_to(target)
        result = call(*line)
        assert result.status == 2
        rule = f"hydra.sweep.dir must be a folder without links to elsewhere, got {tmp_path}/sweep ({name} is a link"
        assert result.err.startswith(rule)
        (tmp_path / "sweep" / name).unlink()
    assert intact(victim)


@MAIN_KINDS
@pytest.mark.parametrize("name", ["manifest.lock", "manifest.jsonl", "logs", "jobs", "runs"])
def test_a_sweep_on_slurm(
    name: str,
    kind: str,
    victim: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "bin").mkdir()
    for command in ("sbatch", "scontrol", "squeue"):
        (tmp_path / "bin" / command).write_text("#!/bin/sh\necho 7\n")
        (tmp_path / "bin" / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    folder = tmp_path / "sweep"
    folder.mkdir()
    PLACES[kind](folder / name, victim)
    assert sweep(["submit", "--folder", str(folder), *SMALL]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(folder) in line
    assert intact(victim)


@MAIN_KINDS
def test_the_name_of_a_run_in_wandb(kind: str, victim: Path, tmp_path: Path) -> None:
    tracker = pytest.importorskip("dsgd.record.trackers.wandb")
    folder = tmp_path / "run"
    assert call(*SMALL, "wandb.mode=disabled", f"hydra.run.dir={folder}").status == 0
    text = (folder / CONFIG).read_text().replace("mode: disabled", "mode: offline")
    (folder / CONFIG).write_text(text)
    (folder / "wandb").symlink_to(victim.parent)
    with pytest.raises(OSError, match="wandb is a link"):
        tracker.init(folder)
    PLACES[kind](folder / f"{tracker.RUN_ID}.partial", victim)
    with pytest.raises(OSError, match="wandb is a link"):
        tracker.init(folder)
    assert intact(victim)


def test_an_archive_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "jin2016.jsonl.gz")
    with pytest.raises(ValueError, match="not a regular file"):
        archive.read(tmp_path / "jin2016.jsonl.gz")


def test_a_checkpoint_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    write_record(tmp_path / "run", marks=3)
    os.mkfifo(tmp_path / "run" / "checkpoint.pt")
    assert call(f"resume={tmp_path}/run").status == 2
    assert call(f"resume={tmp_path}/run/checkpoint.pt").status == 2


def test_what_dsgd_compare_has_kept_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "contest").mkdir()
    os.mkfifo(tmp_path / "contest" / "comparison.json")
    assert compare(["algo=sync,gossip", *SMALL, "--folder", str(tmp_path / "contest")]) == 2
