"""Processes that torchrun starts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.engine.dist.launch.test_torchrun import QUADRATIC
from tests.support.command import SCRIPTS, environment
from tests.support.faults.victims import family
from tests.support.watched_run import BUDGET, STEPS

PATIENCE_S = 100  # after which a test gives up; nothing is measured with it


@contextlib.contextmanager
def launched(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """torchrun on this machine with two processes, its record in `folder`; none of them is left at the end."""
    launcher = ("-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=c10d")
    meeting = ("--rdzv-endpoint=127.0.0.1:0", "--no-python")
    command = [sys.executable, *launcher, *meeting, str(SCRIPTS / "dsgd-run"), *arguments, f"hydra.run.dir={folder}"]
    pipe = subprocess.PIPE
    variables = environment(OMP_NUM_THREADS="1", PYTHONPATH=str(Path(__file__).parents[3]), LAUNCHED_FOR=str(folder))
    process = subprocess.Popen(command, env=variables, stdout=pipe, stderr=pipe, text=True)
    try:
        yield process
    finally:
        left = launched_for(folder)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        process.communicate()
    assert not left


def launched_for(folder: Path) -> list[int]:
    """Return the processes that have it in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if f"LAUNCHED_FOR={folder}\0".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def test_torchrun_makes_one_run_of_its_processes(tmp_path: Path) -> None:
    """engine=auto chooses real processes and says so once; one record, one table."""
    folder = tmp_path / "run"
    with launched(folder, *QUADRATIC, "algo=sync") as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert err.count("engine: dist, torchrun has started 2 processes; time is the wall's") == 1
    assert out.count("record: ") == 1
    assert out.count("sync ") == 1
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["engine"], summary["nodes"]) == ("completed", "dist", 2)
    marks = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert marks[0]["samples"] == 0
    assert marks[-1]["samples"] == summary["samples"] == 60


def test_a_worker_of_gossip_that_dies_under_torchrun_leaves_the_other_to_go_on(tmp_path: Path) -> None:
    folder, skip_file = tmp_path / "run", tmp_path / "skip_pauses"
    options = (
        "algo=gossip",
        BUDGET,
        "data._target_=tests.support.slow_gradients.SlowGradients",
        f"+data.skip_file='{skip_file}'",
    )
    with launched(folder, *QUADRATIC, *options) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not (folder / "metrics.jsonl").exists() or (folder / "metrics.jsonl").read_text().count("\n") < 4:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(family(process.pid)["worker 1"], signal.SIGKILL)
        skip_file.touch()
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "worker 1 has died after" in err
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["workers_lost"]) == ("completed", 1)
    assert summary["samples"] >= 2 * STEPS
