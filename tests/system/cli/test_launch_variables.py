"""Variables of launchers where nobody has started several processes: a shell of srun, a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import shell, summary

SHELL = {  # of srun --pty bash
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n1", "SLURM_JOB_NODELIST": "n1",
    "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
    "SLURM_PTY_PORT": "40107",
}  # fmt: skip
CONTAINER = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "trainer-0.example", "MASTER_PORT": "23456"}
RUN = "dsgd-run experiment=quadratic nodes=2 budget.steps=20"


@pytest.mark.parametrize("variables", [SHELL, CONTAINER, {"WORLD_SIZE": "1"}])
def test_one_process_starts_its_own_workers(variables: dict[str, str], tmp_path: Path) -> None:
    result = shell(f"{RUN} engine=dist hydra.run.dir=run", tmp_path, **variables)
    assert result.returncode == 0, result.stderr
    assert "srun" not in result.stderr
    assert summary(tmp_path / "run")["status"] == "completed"


def test_processes_do_not_meet_over_ipv6(tmp_path: Path) -> None:
    address = "::1"
    variables = CONTAINER | {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": address}
    result = shell(f"{RUN} engine=dist", tmp_path, **variables)
    line = f"MASTER_ADDR must be a host with an IPv4 address, got {address}, which has IPv6 only\n"
    assert (result.returncode, result.stdout, result.stderr) == (2, "", line)
    assert list(tmp_path.iterdir()) == []


def test_a_simulation_is_one_process_whatever_they_say(tmp_path: Path) -> None:
    variables = CONTAINER | {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "0"}
    result = shell(f"{RUN} engine=sim", tmp_path, **variables)
    assert result.returncode == 0, result.stderr
    assert len(list(tmp_path.glob("outputs/*/*/summary.json"))) == 1
