"""`resume=auto`: the same command line, however often it is typed, comes to the end of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsgd.cli import jobs
from dsgd.runner.plan import Plan, plan_run
from tests.support.command import call, summary

SMALL = ("experiment=quadratic", "engine=sim", "nodes=4", "budget.steps=30", "eval.every_steps=10")
STEP = {  # what srun says to its only task
    "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n7", "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
}  # fmt: skip


def test_it_begins_once_and_has_nothing_to_do_then(tmp_path: Path) -> None:
    command = (*SMALL, "resume=auto", f"hydra.run.dir={tmp_path}/run")
    first = call(*command)
    assert first.status == 0, first.err
    record = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert b"resume: null" in record["config.yaml"]
    again = call(*command)
    assert (again.status, again.err) == (0, f"the run in {tmp_path}/run is completed: nothing to do\n")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == record


def test_a_run_that_has_ended_with_another_configuration_is_not_taken_for_this_one(tmp_path: Path) -> None:
    folder = f"hydra.run.dir={tmp_path}/run"
    assert call(*SMALL, folder).status == 0
    again = call(*SMALL, folder, "resume=auto", "seed=1")
    assert (again.status, again.err) == (2, f"seed must be 0, as in the record in {tmp_path}/run, got 1\n")


def test_a_step_of_slurm_has_a_folder_of_its_own_and_finds_it_again_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    assert call(*SMALL).status == 0
    folder = tmp_path / "outputs" / "slurm-17.0_sync_4"
    assert summary(folder)["status"] == "completed"
    twice = call(*SMALL)
    assert twice.status == 2
    assert twice.err.startswith("hydra.run.dir must not hold another run's record, got outputs/slurm-17.0_sync_4;")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    restarted = call(*SMALL)
    assert (restarted.status, restarted.err) == (0, f"the run in {folder} is completed: nothing to do\n")


def test_a_run_that_comes_to_its_end_while_it_is_planned_is_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where two commands go on with it at once."""
    record = tmp_path / "run" / "summary.json"
    command = (*SMALL, "engine.keep_checkpoint=true", "hydra.sweep.subdir=run")
    assert call(*command, f"hydra.run.dir={tmp_path}/run").status == 0
    text = record.read_text()

    def ends_then_plans(*arguments: Any) -> Plan:
        record.write_text(text)
        return plan_run(*arguments)

    monkeypatch.setattr(jobs, "plan_run", ends_then_plans)
    for words in ((f"hydra.run.dir={tmp_path}/run",), ("-m", f"hydra.sweep.dir={tmp_path}", "seed=0")):
        record.unlink()
        again = call(*command, "resume=auto", *words)
        assert again.status == 0, again.err
        assert "Traceback" not in again.err
        assert record.read_text() == text
