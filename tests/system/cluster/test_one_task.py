"""A shell that srun has started as its only task, on a real SLURM: what is typed there is no part of a launch."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dsgd.record.reader import find_runs
from tests.support.command import SCRIPTS
from tests.support.slurm import Slurm

RUN = f"{shlex.quote(f'{SCRIPTS}/dsgd-run')} experiment=quadratic nodes=2 budget.steps=20 engine=dist"


@pytest.mark.parametrize("flags", [(), ("--pty",)])
def test_what_is_typed_in_a_step_of_one_task_runs(slurm: Slurm, tmp_path: Path, flags: tuple[str, ...]) -> None:
    typed = "; ".join(f"{RUN} hydra.run.dir={name}" for name in ("one", "two"))
    srun = shlex.join(["srun", "--partition=low", "-n1", *flags, "bash", "-c", typed])
    done = slurm.run("script", "-qec", srun, "/dev/null", cwd=tmp_path, check=False)  # a terminal, for --pty
    assert done.returncode == 0, done.stdout + done.stderr
    assert [run.status for run in find_runs([tmp_path])] == ["completed", "completed"]
