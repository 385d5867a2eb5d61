"""Several runs are told to write in one folder: one does, and the others are refused without having touched it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from dsgd.cli.compose import composed
from dsgd.engines.execute import execute
from dsgd.record.checkpoint_file import NAME
from dsgd.record.lock import LOCK, locked
from dsgd.runner.plan import plan_run
from dsgd.runner.values import ConfigError
from tests.support.command import call, marks
from tests.support.prefork import Prefork, Run

AT_ONCE = 4
RUN = ("experiment=quadratic", "algo=sync", "nodes=2", "eval.every_steps=10")
SLOW = ("data._target_=tests.support.slow_gradients.SlowGradients",)


def at_once(prefork: Prefork, folder: Path, lines: Sequence[Sequence[str]]) -> list[Run]:
    """Start one command for every line, and wait for the end of all."""
    runs = []
    for number, arguments in enumerate(lines):
        own = folder / f"said {number}"  # beside which its output goes
        pid = prefork.ask({"arguments": arguments, "folder": str(own), "environment": {}})["pid"]
        runs.append(Run(prefork, pid, own))
    for run in runs:
        run.wait()
    return runs


def only_one(runs: Sequence[Run], folder: Path) -> int:
    """Check that one run has ended well and the others were refused in one line. Returns its number."""
    refusals = (
        f"hydra.run.dir must not be in use by another run, got {folder}\n",
        f"hydra.run.dir must not hold another run's record, got {folder}; dsgd-run resume={folder} resumes that run\n",
        f"hydra.run.dir must not hold another run's record, got {folder}; that run is completed\n",
        f"the run in {folder} is completed: nothing to do\n",
        f"resume must be an interrupted run, got {folder}, which is completed\n",
    )
    statuses = [run.wait() for run in runs]
    done = [number for number, run in enumerate(runs) if statuses[number] == 0 and "record: " in run.out]
    assert len(done) == 1, [run.err for run in runs]
    for number, run in enumerate(runs):
        if number not in done:
            assert run.err in refusals
            assert statuses[number] == (0 if "nothing to do" in run.err else 2)
    assert not (folder / LOCK).exists()
    return done[0]


def test_commands_at_once_make_one_run(prefork: Prefork, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    options = (*RUN, "budget.steps=30", "engine=dist")
    lines = [(*options, f"seed={seed}", f"hydra.run.dir={folder}") for seed in range(AT_ONCE)]
    winner = only_one(at_once(prefork, tmp_path, lines), folder)
    assert [mark["samples"] for mark in marks(folder)] == [0, 20, 40, 60]
    assert call(*options, "engine=sim", f"seed={winner}", f"hydra.run.dir={tmp_path}/alone").status == 0
    for found, alone in zip(marks(folder), marks(tmp_path / "alone"), strict=True):
        assert found["test_loss"] == pytest.approx(alone["test_loss"], rel=1e-4)


def interrupted(run: Run) -> Run:
    """Send a run a signal when it has made marks, and wait for its end."""
    before = len(run.marks)
    run.until(lambda: len(run.marks) >= before + 2)
    os.kill(run.pid, signal.SIGINT)
    assert run.wait() == 130, run.err
    return run


@pytest.mark.parametrize(("engine", "resume"), [("sim", "auto"), ("dist", "folder")])
def test_a_run_is_gone_on_with_once(prefork: Prefork, tmp_path: Path, engine: str, resume: str) -> None:
    folder = tmp_path / "run"
    options = (*RUN, *SLOW, "budget.steps=100", f"engine={engine}")
    run = interrupted(prefork.start(folder, *options))
    line = {
        "auto": (*options, "resume=auto", f"hydra.run.dir={folder}"),
        "folder": (f"resume={folder}", "resume_trusted=true"),
    }[resume]
    only_one(at_once(prefork, tmp_path, [line] * AT_ONCE), folder)
    assert run.summary["status"] == "completed"
    samples = [mark["samples"] for mark in run.marks]
    assert samples == sorted(set(samples))
    assert samples[-1] == 200


def test_a_folder_in_use_is_refused_from_python_and_in_a_sweep(tmp_path: Path) -> None:
    small = (*RUN, "engine=sim", "budget.steps=10")
    folder = tmp_path / "0_sync_2"
    with locked(folder):
        before = sorted(folder.iterdir())
        line = f"hydra.run.dir must not be in use by another run, got {folder}"
        with pytest.raises(ConfigError, match=line):
            execute(plan_run(composed(list(small)), []), folder)
        swept = call("-m", *small, f"hydra.sweep.dir={tmp_path}")
        assert swept.status == 1
        assert sorted(folder.iterdir()) == before
    assert execute(plan_run(composed(list(small)), []), folder) == "completed"


def test_a_checkpoint_that_has_changed_since_the_plan_was_made_is_not_gone_on_with(
    prefork: Prefork, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    interrupted(prefork.start(folder, *RUN, *SLOW, "budget.steps=10000", "engine=sim"))
    other = shutil.copytree(folder, tmp_path / "other")
    trusted = [f"resume={folder}", "resume_trusted=true"]
    plan = plan_run(composed(trusted), trusted)
    interrupted(prefork.start(folder, *trusted))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for place in (folder, other):
        with pytest.raises(ConfigError, match=f"hydra.run.dir must not be in use by another run, got {folder}"):
            execute(plan, place)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert (other / NAME).exists()
