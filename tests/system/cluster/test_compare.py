"""dsgd-compare on a real SLURM, typed on its login node until there is nothing more to submit."""

from __future__ import annotations

import time
from pathlib import Path

from dsgd.record.reader import find_runs
from tests.support.command import SCRIPTS
from tests.support.slurm import Slurm

PATIENCE_S = 240
LINE = (
    *("algo=sync,gossip", "nodes=2", "engine=sim", "budget.epochs=1", "target.accuracy=0.5", "cluster.gradient_s=0.01"),
    *("compare.tune={optimizer.lr: [0.1, 0.2]}", "compare.tune_values=3", "compare.seeds=2"),
    *("compare.on=slurm", "slurm.partition=low"),
)


def test_the_same_command_leads_from_the_first_submission_to_the_verdict(slurm: Slurm, tmp_path: Path) -> None:
    command = [str(SCRIPTS / "dsgd-compare"), *LINE]
    deadline = time.monotonic() + PATIENCE_S
    submitted = 0
    while (done := slurm.run(*command, cwd=tmp_path, check=False)).returncode:
        assert done.returncode == 1, done.stdout + done.stderr
        assert "repeat the command when they have ended" in done.stderr, done.stderr
        assert time.monotonic() < deadline, done.stdout + done.stderr
        submitted += done.stdout.count("job ")
        time.sleep(3)
    assert submitted >= 3  # the middle of the grid, the rest of it, what is measured
    assert (tmp_path / "comparison" / "verdict.txt").read_text().splitlines()[0] in done.stdout
    measured = [run for run in find_runs([tmp_path / "comparison"]) if run.setting("data.evaluate") == "test"]
    assert sorted((run.algorithm, run.setting("seed")) for run in measured) == [
        *(("gossip", 0), ("gossip", 1)),
        *(("sync", 0), ("sync", 1)),
    ]
