"""dsgd-sweep on a real SLURM, typed on its login node: from a grid to its figure, and what may go wrong between."""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dsgd.record.reader import find_runs
from tests.support.command import SCRIPTS
from tests.support.slurm import Slurm

PATIENCE_S = 90
QUADRATIC = "experiment=quadratic budget.steps=10 eval.every_steps=5"
HELD = f"{QUADRATIC} engine=sim slurm.options.hold=true"  # never starts


class Login:
    """The login node, in a folder."""

    def __init__(self, slurm: Slurm, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder
        folder.mkdir()

    def sweep(self, line: str, status: int = 0) -> str:
        """What dsgd-sweep prints, with an error at the end."""
        command = [str(SCRIPTS / "dsgd-sweep"), *shlex.split(line)]
        done = self.slurm.run(*command, cwd=self.folder, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def wait(self, *states: str) -> Counter[str]:
        """Wait until every point is in one of these states."""
        deadline = time.monotonic() + PATIENCE_S
        while (counts := self.states()).keys() - states:
            assert time.monotonic() < deadline, f"{counts}\n" + self.sweep("logs '*'")
            time.sleep(2)  # to look takes time of the processors, too
        return counts

    def started(self) -> None:
        """Wait for the first mark of some record."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(path.stat().st_size for path in self.folder.glob("sweep/runs/*/metrics.jsonl")):
            assert time.monotonic() < deadline, self.sweep("status --points")
            time.sleep(0.1)

    def states(self) -> Counter[str]:
        first = self.sweep("status").splitlines()[0]
        pairs = (pair.split() for pair in first.rpartition(": ")[2].split(", "))
        return Counter({name: int(count) for count, name in pairs})

    def queued(self) -> list[str]:
        """The array tasks that SLURM has yet to end."""
        return self.slurm.run("squeue", "--noheader", "--array", "--format=%i").stdout.split()

    def manifest(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "sweep" / "manifest.jsonl").read_text().splitlines()]


@pytest.fixture
def login(slurm: Slurm, tmp_path: Path) -> Login:
    return Login(slurm, tmp_path / "größe 2's")


def test_a_sweep_from_submission_to_its_figure(login: Login) -> None:
    """In real processes; then another seed. In a folder with letters of all kinds, without sacct."""
    grid = f"submit algo=sync,gossip nodes=1,2 seed=1 engine=dist {QUADRATIC} slurm.partition=low"
    said = login.sweep(grid)
    assert "2 points, each 1 task on 1 machine\n" in said
    assert "2 points, each 2 tasks on 2 machines\n" in said
    login.wait("pending", "running", "completed")
    assert "4 of 4 points exist already" in login.sweep(grid)
    assert login.wait("completed") == {"completed": 4}

    written = (login.folder / "sweep" / "manifest.jsonl").read_bytes()
    assert login.sweep(grid) == "4 of 4 points exist already: 4 completed\nnothing to submit\n"
    assert (login.folder / "sweep" / "manifest.jsonl").read_bytes() == written

    runs = find_runs([login.folder / "sweep"])
    assert sorted((run.algorithm, run.nodes, run.setting("seed"), run.clock) for run in runs) == [
        (algo, nodes, 1, "wall") for algo in ("gossip", "sync") for nodes in (1, 2)
    ]
    more = login.sweep(f"{grid.replace('seed=1', 'seed=1,2')} slurm.options.hold=true")
    assert "4 of 8 points exist already: 4 completed" in more
    assert len(login.queued()) == 4
    said = login.sweep("collect --out 'die Bilder'")
    assert "warning" not in said
    assert "left out: 4 points without a result" in said
    assert len((login.folder / "die Bilder" / "summary.csv").read_text().splitlines()) == 1 + 4
    assert (login.folder / "die Bilder" / "overview.png").read_bytes().startswith(b"\x89PNG")


def test_a_submission_that_was_not_written_down_is_found_in_the_queue(login: Login) -> None:
    """The submitter died while it wrote the number of the job."""
    login.sweep(f"submit algo=sync,gossip {HELD}")
    path = login.folder / "sweep" / "manifest.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert login.states() == {"submitting": 2}
    assert "nothing to submit" in login.sweep(f"submit algo=sync,gossip {HELD}")
    assert login.states() == {"pending": 2}
    assert len(login.queued()) == 2


def test_what_slurm_refuses_is_one_line_and_can_be_submitted_again(login: Login) -> None:
    said = login.sweep(f"submit algo=sync {HELD} slurm.partition=nope", status=2)
    assert said.startswith("dsgd-sweep: sbatch failed: ")
    assert "invalid partition specified: nope" in said
    assert len(said.splitlines()) == 1
    assert login.states() == {"unsubmitted": 1}
    assert "1 point, each 1 task" in login.sweep(f"submit algo=sync {HELD}")
    assert login.states() == {"pending": 1}


def test_cancelled_points_leave_the_queue_and_can_be_taken_up_again(login: Login) -> None:
    """One that runs, and two that wait for it; the one that ran had written a checkpoint."""
    long = "experiment=quadratic budget.steps=10000000 eval.every_steps=50 nodes=2"
    login.sweep(f"submit {long} seed=1,2,3 engine=sim slurm.at_once=1")
    login.started()
    assert login.states() == {"running": 1, "pending": 2}
    assert "cancelled: 1 point;" in login.sweep("cancel sync_2_3")
    assert login.states() == {"running": 1, "pending": 1, "cancelled": 1}
    assert "cancelled: 2 points;" in login.sweep("cancel")
    assert login.wait("running", "cancelled").total() == 3
    assert login.wait("cancelled") == {"cancelled": 3}
    assert "nothing to cancel" in login.sweep("cancel")
    assert login.queued() == []
    (summary,) = login.folder.glob("sweep/runs/sync_2_1-*/summary.json")
    assert json.loads(summary.read_text())["status"] == "interrupted"
    assert summary.with_name("checkpoint.pt").exists()
    assert "3 points, each" in login.sweep("retry --slurm options.hold=true")
    assert login.states() == {"pending": 3}
