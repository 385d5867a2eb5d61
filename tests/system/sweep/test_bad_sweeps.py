"""Bad input to dsgd-sweep ends before anything is written or submitted: exit status 2 and one line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dsgd.cli.sweep import main

# what is typed -> what the line must contain
CASES = """
 -> the following arguments are required: COMMAND
submit -> submit must be given overrides, like algo=sync,gossip nodes=8,16, got none
submit algo=gossip algo.tau=3,0 -> algo.tau must be >= 1, got 0
submit seed=range(3,3) -> a sweep must have at least one point, got none from seed=range(3,3)
submit algo=sync engine.gradients=none -> engine.gradients must not be none with engine=dist
submit algo=sync resume=auto -> resume must not be given: dsgd-sweep says where records are
submit algo=sync slurm=nope -> slurm must be one of default, got 'nope'
submit algo=sync slurm.partion=x -> slurm.partion is not a key of slurm; did you mean slurm.partition
submit algo=sync slurm.partition=a,b -> slurm.partition must be one value, got a,b
submit algo=sync "slurm.partition='a b'" -> slurm.partition must be one word without quotes, got 'a b'
submit algo=sync slurm.time=90m -> slurm.time must be like 2:30:00 or 1-12:00:00 (days- ... got '90m'
submit algo=sync slurm.warning_s=-1 -> slurm.warning_s must be in [0, 65535], got -1
submit algo=sync slurm.options.nodes=3 -> slurm.options must not hold nodes, which every job is given, got 3
submit algo=sync slurm.environment.x-y=3 -> slurm.environment must give variables their values, got x-y: 3
submit algo=sync engine=dist engine.gpus_per_node=2 -> slurm.gpus_per_task must be >= engine.gpus_per_node = 2, got 0
submit algo=sync -> sbatch must be on the PATH (a login node of SLURM has it), got none
status -> --folder must be the folder of a sweep, got sweep without
cancel --folder elsewhere -> got elsewhere without manifest.jsonl
logs --lines 0 -> --lines must be >= 1, got 0
"""


def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for case in CASES[1:-1].split("\n"):
        line, _, rule = case.partition(" -> ")
        assert main(shlex.split(line)) == 2
        said = capsys.readouterr()
        assert (said.out, len(said.err.splitlines())) == ("", 1), case
        assert [part for part in rule.split(" ... ") if part not in said.err] == [], (case, said.err)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_prints_the_batch_scripts_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One for each number of machines; what is swept over twice is one point."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "mine" / "slurm").mkdir(parents=True)
    (tmp_path / "mine" / "slurm" / "site.yaml").write_text("# Ours.\npartition: gpu\nenvironment: {A: 1}\n")
    site = "--config-dir mine slurm=site +slurm.account=me slurm.environment.B=2"
    line = f"submit --dry-run {site} slurm.time=1-12:30 algo=sync,gossip,sync nodes=2,4"
    assert main(line.split()) == 0
    said = capsys.readouterr().out
    demand = [re.sub("-[0-9a-f]{12}", "", text) for text in said.splitlines()[-5:]]
    assert demand == [
        "# sync_2_0: 2 tasks on 2 machines",
        "# gossip_2_0: 2 tasks on 2 machines",
        "# sync_4_0: 4 tasks on 4 machines",
        "# gossip_4_0: 4 tasks on 4 machines",
        "# 4 points, 438 node-hours: machines x slurm.time=1-12:30, once more for a requeued point",
    ]
    assert said.count("#!/bin/bash\n") == 2
    assert said.count("point=(") == 4
    for text in ("--partition=gpu", "--account=me"):
        assert said.count(f"#SBATCH {text}\n") == 2
    for text in ("export A=1", "export B=2", f"--config-dir {tmp_path / 'mine'} algo=gossip nodes=4"):
        assert text in said
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
