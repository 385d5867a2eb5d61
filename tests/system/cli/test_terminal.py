"""A command outlives its terminal: it writes what it would have written, and ends with the same status."""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import PATIENCE_S, environment, lines, signalled, summary, typed, wait_until

RUN = "dsgd-run experiment=quadratic nodes=2 budget.steps=200 eval.every_steps=1 hydra.run.dir=run"
SWEEP = "dsgd-run -m experiment=quadratic nodes=2 budget.steps=20 seed=0,1 hydra.sweep.dir=sweep"
COMPARE = (
    "dsgd-compare algo=sync experiment=quadratic nodes=2 budget.steps=20 cluster.gradient_s=0.01 target.loss=0.1 "
    "compare.tune={} compare.seeds=2"
)
ENDLESS = (
    "dsgd-run experiment=quadratic nodes=2 budget.steps=10000000 eval.every_steps=100 cluster.gradient_s=0.01 "
    "hydra.run.dir=run"
)


@pytest.fixture(autouse=True)
def _hangups_count() -> Iterator[None]:
    """Have commands begin as from a terminal, also where these tests were started by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("engine", "form"), [("sim", "2>&1 | head -n 1"), ("sim", ">/dev/full 2>&1"), ("dist", "<&- >&- 2>&-")]
)
def test_a_run_goes_on_without_a_reader(engine: str, form: str, tmp_path: Path) -> None:
    assert in_bash(f"{RUN} engine={engine} {form}", tmp_path) == 0
    assert summary(tmp_path / "run")["status"] == "completed"
    assert lines(tmp_path / "run") == 201


@pytest.mark.parametrize(
    ("line", "form", "made"),
    [(SWEEP, "| true", "sweep/1_sync_2/summary.json"), (COMPARE, "<&- >&- 2>&-", "comparison/verdict.txt")],
)
def test_so_do_other_commands(line: str, form: str, made: str, tmp_path: Path) -> None:
    assert in_bash(f"{line} {form}", tmp_path) == 0
    assert (tmp_path / made).stat().st_size > 0


def test_a_refusal_keeps_its_status(tmp_path: Path) -> None:
    assert in_bash("dsgd-run nodes=0 2>&-", tmp_path) == 2


@pytest.mark.parametrize("engine", ["sim", "dist"])
def test_a_hangup_ends_a_run_with_a_checkpoint(engine: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = signalled(f"{ENDLESS} engine={engine}", tmp_path, run, lambda: lines(run) > 2, signal.SIGHUP)
    assert result.returncode == 130, result.stderr
    assert summary(run)["status"] == "interrupted"
    assert (run / "checkpoint.pt").stat().st_size > 0


def test_a_command_that_was_started_to_outlive_a_hangup_does(tmp_path: Path) -> None:
    run = tmp_path / "run"
    line = shlex.join(["nohup", *typed(f"{ENDLESS} engine=sim")])
    process = subprocess.Popen(["bash", "-c", f"exec {line} >out 2>&1"], cwd=tmp_path, env=environment())
    try:
        wait_until(lambda: lines(run) > 2, process)
        process.send_signal(signal.SIGHUP)
        reached = lines(run)
        wait_until(lambda: lines(run) > reached + 2, process)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 130


def in_bash(line: str, folder: Path) -> int:
    """Return the exit status of a command whose line bash redirects."""
    command = shlex.quote(typed(line)[0]) + line[line.index(" ") :]
    script = f"set -o pipefail; {command}"
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment(), capture_output=True, timeout=PATIENCE_S
    ).returncode
