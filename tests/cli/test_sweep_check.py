"""A sweep whose jobs run at a time is checked in a process of its own, and nobody notices."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import dsgd.cli.check
from dsgd.cli import sweep_check
from dsgd.cli.check import check
from dsgd.cli.sweep_check import check_beside, has_jobs_at_a_time
from dsgd.host.signals import Interruption
from tests.support.command import PATIENCE_S, shell

SWEEP = ("-m", "algo=sync,gossip", "nodes=2", "experiment=quadratic", "seed=0,1")


def nothing() -> None:
    """Take no time."""


def test_it_finds_what_the_check_finds(tmp_path: Path) -> None:
    line = [*SWEEP, f"hydra.sweep.dir={tmp_path}/swept"]
    other, here = check_beside(line, Interruption(), nothing), check(line, Interruption())
    assert other.multirun is not None
    assert other == here


def test_an_error_is_printed_while_this_process_is_at_work(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    printed = ""

    def meanwhile() -> None:
        nonlocal printed
        deadline = time.monotonic() + PATIENCE_S
        while not printed and time.monotonic() < deadline:
            printed = capfd.readouterr().err

    with pytest.raises(SystemExit) as ended:
        check_beside([*SWEEP, "batch_size=0"], Interruption(), meanwhile)
    assert ended.value.code == 2
    assert printed == "batch_size must be >= 1, got 0\n"


def test_a_signal_ends_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        check_beside(SWEEP, Interruption(), lambda: signal.raise_signal(signal.SIGTERM))


def test_a_check_that_is_killed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dsgd.cli.check, "check", lambda *given: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(SystemExit) as ended:
        check_beside(SWEEP, Interruption(), nothing)
    assert ended.value.code == "the check of the sweep was killed by SIGKILL"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (SWEEP, True),
        ((*SWEEP, "sweep.jobs=2"), True),
        ((*SWEEP, "sweep.jobs=1"), False),
        ((*SWEEP, "--help"), False),
        ((*SWEEP, "--cfg", "job"), False),
        (SWEEP[1:4], False),
    ],
)
def test_it_is_for_sweeps_that_use_several_cores(
    line: tuple[str, ...], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_check, "cores", lambda: 2)
    assert has_jobs_at_a_time(line) is expected
    monkeypatch.setattr(sweep_check, "cores", lambda: 1)
    assert not has_jobs_at_a_time(line)


def test_the_installed_command_ends_the_same_way(tmp_path: Path) -> None:
    result = shell(f"dsgd-run {' '.join(SWEEP)} algo.tua=1", tmp_path)
    assert (result.returncode, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    assert "algo.tua is not a key" in result.stderr
    assert list(tmp_path.iterdir()) == []
