"""A run on a file system that fills up, a real one: it ends as failed, in one line, with whole files."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.command import environment
from tests.support.prefork import Prefork

UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")
SIZES = {"mark": "128k", "trace": "128k", "beginning": "8k", "record": "20k"}  # of the disk of each run
SMALL = ("dsgd-run", "experiment=quadratic", "algo=sync", "nodes=2", "hydra.run.dir=disk/run")


def can_mount() -> bool:
    """Whether this user may mount a file system in a namespace of its own."""
    if shutil.which("unshare") is None:
        return False
    command = [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def on_small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., tuple[int, str, Path]]]:
    """Types a line where ./disk has the size of this name. Returns the exit status, what it printed to stderr, and the
    record. The disks are seen by what a process forks that has mounted them, and by nobody else."""
    if not can_mount():
        pytest.skip("needs user and mount namespaces")
    top = tmp_path_factory.mktemp("disks")
    mounts = []
    for name, size in SIZES.items():
        (top / name / "disk").mkdir(parents=True)
        mounts.append(f"mount -t tmpfs -o size={size} tmpfs {shlex.quote(str(top / name / 'disk'))} || exit 77")
    script = "; ".join([*mounts, 'exec "$@"'])
    server = Prefork((*UNSHARE, "sh", "-c", script, "sh"))

    def typed(name: str, *options: str) -> tuple[int, str, Path]:
        command = server.command([*SMALL, *options], top / name, environment())
        _, err = command.communicate()
        return command.returncode, err, server.root / (top / name / "disk" / "run").relative_to("/")

    yield typed
    server.close()


Typed = Callable[..., tuple[int, str, Path]]


def told(record: Path) -> str:
    """Return the line that a run ends with whose record cannot be written."""
    folder = Path("/", *record.parts[4:])  # as the run sees it
    return f"the record in {folder} cannot be written: No space left on device"


def assert_failed(status: int, err: str, record: Path) -> None:
    line = told(record)
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


def test_a_mark_that_does_not_fit_ends_the_run(on_small_disk: Typed) -> None:
    status, err, record = on_small_disk("mark", "engine=dist", "budget.steps=100000", "eval.every_steps=1")
    assert_failed(status, err, record)
    assert (record / "metrics.jsonl").stat().st_size > 50_000


def test_a_trace_that_does_not_fit_ends_the_run(on_small_disk: Typed) -> None:
    line = ("engine=sim", "budget.steps=1000", "eval.every_steps=1000", "trace=true")
    status, err, record = on_small_disk("trace", *line)
    assert_failed(status, err, record)
    assert not (record / "trace.json").exists()


def test_a_disk_that_is_full_from_the_beginning_refuses_the_run(on_small_disk: Typed) -> None:
    status, err, record = on_small_disk("beginning", "engine=sim")
    folder = Path("/", *record.parts[4:])
    line = f"hydra.run.dir must be a folder that can be written, got {folder} (No space left on device)\n"
    assert (status, err) == (2, line)
    assert not record.exists()


def test_a_disk_without_room_for_a_record_fails_the_run(on_small_disk: Typed) -> None:
    """The first files fit, and the last of them does not."""
    status, err, record = on_small_disk("record", "engine=dist")
    assert status == 1, err
    assert err.splitlines().count(told(record)) == 1, err
    assert "Traceback" not in err
    assert not (record / "summary.json").exists()
