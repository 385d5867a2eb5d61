"""What a command prepares in a process of its own, while it imports torch, is what it would be without."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from dsgd.cli import arguments
from dsgd.cli.arguments import has_jobs_at_a_time
from dsgd.cli.beside import beside
from dsgd.cli.check import check
from dsgd.cli.checked import Checked
from dsgd.host.signals import Interruption
from tests.support.command import PATIENCE_S, shell

SWEEP = ("-m", "algo=sync,gossip", "nodes=2", "experiment=quadratic", "seed=0,1")


def nothing() -> None:
    """Take no time."""


def checked(line: Sequence[str]) -> Checked:
    return check(line, Interruption())


def test_it_finds_what_the_check_finds(tmp_path: Path) -> None:
    line = [*SWEEP, f"hydra.sweep.dir={tmp_path}/swept"]
    other, here = beside(lambda: checked(line), nothing), checked(line)
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
        beside(lambda: checked([*SWEEP, "batch_size=0"]), meanwhile)
    assert ended.value.code == 2
    assert printed == "batch_size must be >= 1, got 0\n"


def test_a_signal_ends_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        beside(lambda: checked(SWEEP), lambda: signal.raise_signal(signal.SIGTERM))


def test_a_check_that_is_killed_is_named() -> None:
    with pytest.raises(SystemExit) as ended:
        beside(lambda: os.kill(os.getpid(), signal.SIGKILL), nothing)
    assert ended.value.code == "the check of the command line was killed by SIGKILL"


def children() -> set[int]:
    """This process's children, also those that another test has left to a thread or to nobody."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def test_a_signal_in_the_midst_of_a_long_result_loses_nothing() -> None:
    """The other process waits until this one reads, and is interrupted as it writes."""
    sent, before = signal.signal(signal.SIGUSR1, lambda *_: None), children()
    try:

        def prepare() -> str:
            return "x" * 1_000_000

        def meanwhile() -> None:
            (child,) = children() - before
            for _ in range(50):
                time.sleep(0.01)
                os.kill(child, signal.SIGUSR1)

        assert beside(prepare, meanwhile) == "x" * 1_000_000
    finally:
        signal.signal(signal.SIGUSR1, sent)


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
    monkeypatch.setattr(arguments, "cores", lambda: 2)
    assert has_jobs_at_a_time(line) is expected
    monkeypatch.setattr(arguments, "cores", lambda: 1)
    assert not has_jobs_at_a_time(line)


def test_the_installed_command_ends_the_same_way(tmp_path: Path) -> None:
    result = shell(f"dsgd-run {' '.join(SWEEP)} algo.tua=1", tmp_path)
    assert (result.returncode, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    assert "algo.tua is not a key" in result.stderr
    assert list(tmp_path.iterdir()) == []
