"""A run on a file system that fills up, a real one: it ends as failed, in one line, with whole files."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command import PATIENCE_S, environment, typed
from tests.support.long import long_but

UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")
# Mounts a small file system at ./disk, which nobody else sees, types the command, and copies what is left.
SCRIPT = """
mount -t tmpfs -o size={size} tmpfs disk || exit 77
{command} 2> err
status=$?
cp -a disk/run left
exit $status
"""
SMALL = "dsgd-run experiment=quadratic algo=sync nodes=2 hydra.run.dir=disk/run"


def can_mount() -> bool:
    """Whether this user may mount a file system in a namespace of its own."""
    if shutil.which("unshare") is None:
        return False
    command = [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not can_mount(), reason="needs user and mount namespaces")


def on_small_disk(folder: Path, size: str, line: str) -> tuple[int, str, Path]:
    """Type a line where ./disk has this size. Returns the exit status, what it printed to stderr, the record left."""
    (folder / "disk").mkdir()
    script = SCRIPT.format(size=size, command=shlex.join(typed(line)))
    command = [*UNSHARE, "sh", "-c", script]
    ended = subprocess.run(command, cwd=folder, env=environment(), timeout=PATIENCE_S, check=False)
    return ended.returncode, (folder / "err").read_text(), folder / "left"


def assert_failed(status: int, err: str, record: Path) -> None:
    line = f"the record in {record.parent}/disk/run cannot be written: No space left on device"
    assert status == 1, err
    assert err.splitlines().count(line) == 1, err
    assert "Traceback" not in err
    summary = json.loads((record / "summary.json").read_text())
    assert (summary["status"], summary["error"]) == ("failed", line)
    text = (record / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    for mark in text.splitlines():
        json.loads(mark)
    assert not list(record.glob("*.partial"))


@pytest.mark.parametrize("engine", long_but(["dist"], ["sim", "dist"]))
def test_a_mark_that_does_not_fit_ends_the_run(tmp_path: Path, engine: str) -> None:
    ended = on_small_disk(tmp_path, "128k", f"{SMALL} engine={engine} budget.steps=100000 eval.every_steps=1")
    assert_failed(*ended)
    assert (tmp_path / "left" / "metrics.jsonl").stat().st_size > 50_000


@pytest.mark.parametrize("engine", long_but(["sim"], ["sim", "dist"]))
def test_a_trace_that_does_not_fit_ends_the_run(tmp_path: Path, engine: str) -> None:
    line = f"{SMALL} engine={engine} budget.steps=1000 eval.every_steps=1000 trace=true"
    ended = on_small_disk(tmp_path, "128k", line)
    assert_failed(*ended)
    assert not (tmp_path / "left" / "trace.json").exists()


@pytest.mark.parametrize("engine", long_but(["sim"], ["sim", "dist"]))
def test_a_disk_that_is_full_from_the_beginning_refuses_the_run(tmp_path: Path, engine: str) -> None:
    status, err, record = on_small_disk(tmp_path, "8k", f"{SMALL} engine={engine}")
    folder = tmp_path / "disk" / "run"
    line = f"hydra.run.dir must be a folder that can be written, got {folder} (No space left on device)\n"
    assert (status, err) == (2, line)
    assert not record.exists()


@pytest.mark.parametrize("engine", long_but(["dist"], ["sim", "dist"]))
def test_a_disk_without_room_for_a_record_fails_the_run(tmp_path: Path, engine: str) -> None:
    """The first files fit, and the last of them does not."""
    status, err, record = on_small_disk(tmp_path, "20k", f"{SMALL} engine={engine}")
    line = f"the record in {tmp_path}/disk/run cannot be written: No space left on device"
    assert status == 1, err
    assert err.splitlines().count(line) == 1, err
    assert "Traceback" not in err
    assert not (record / "summary.json").exists()
