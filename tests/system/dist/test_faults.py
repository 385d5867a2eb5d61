"""Processes that fall silent for about as long as they may, and faults that take long to tell."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dsgd.record.checkpoint_file import NAME, read_header
from tests.engine.dist.test_resume import interrupted
from tests.support.prefork import Prefork
from tests.support.valid_record import problems
from tests.support.watched_run import (
    ALGORITHMS,
    BUDGET,
    FREE_RUNNING,
    LOCKSTEP,
    SILENCE_S,
    SILENT,
    results,
    resume,
    start,
)  # fmt: skip

GOSSIP = (*FREE_RUNNING["gossip"], "nodes=3")


@pytest.mark.parametrize("first", ["coordinator", "the command"])
def test_a_machine_that_stood_still_has_lost_nobody(prefork: Prefork, tmp_path: Path, first: str) -> None:
    """For longer than anybody may be silent. first: to wake up."""
    watched = start(prefork, tmp_path / "run", "algo=dpsgd", "nodes=3", BUDGET, SILENT)
    found = {**watched.wait_for_marks(), "the command": watched.run.pid}
    for pid in found.values():
        os.kill(pid, signal.SIGSTOP)
    signal.sigtimedwait([], SILENCE_S + 1)
    os.kill(found[first], signal.SIGCONT)
    signal.sigtimedwait([], 0.1)
    for pid in found.values():
        os.kill(pid, signal.SIGCONT)
    watched.skip_pauses()
    watched.assert_ends("completed", 0)
    lines = [line for name in found for line in watched.lines_about(name)]
    assert [line for line in lines if "evaluations" not in line] == []  # one may have stood still for as long


def test_a_worker_that_warms_up_for_longer_than_the_limit_is_not_silent(prefork: Prefork, tmp_path: Path) -> None:
    """Nobody else waits for it by a limit of their own, either."""
    slow = ("+data.step_s=60", SILENT, "budget.steps=20")
    watched = start(prefork, tmp_path / "run", *ALGORITHMS["gossip"], "nodes=2", *slow)
    watched.run.until(lambda: all((tmp_path / f"run.skip.{rank}").exists() for rank in range(2)))
    signal.sigtimedwait([], SILENCE_S + 1)
    watched.skip_pauses()
    watched.assert_ends("completed", 0)


def test_a_slow_disk_counts_against_nobody(prefork: Prefork, tmp_path: Path) -> None:
    """The first files of the record take longer to be written than a member may be silent."""
    slow = ("data._target_=tests.support.slow_gradients.SlowDisk", "budget.steps=20", SILENT)
    watched = start(prefork, tmp_path / "run", "algo=sync", "nodes=2", *slow)
    watched.assert_ends("completed", 0)
    assert watched.run.summary["workers_lost"] == 0


def test_a_run_goes_on_with_all_workers_after_one_was_lost(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *GOSSIP, BUDGET)
    os.kill(watched.wait_for_marks()["worker 1"], signal.SIGKILL)
    watched.wait_for_output("worker 1 has died")
    watched.wait_for_more_marks()
    saved = interrupted(watched)
    assert watched.run.summary["workers_lost"] == 1
    resumed = resume(prefork, watched)
    resumed.assert_ends("completed", 0)
    assert problems(resumed.run.folder, saved) == []
    assert resumed.run.summary["workers_lost"] == 1


def test_lock_step_diverges_at_the_same_step_after_resuming(prefork: Prefork, tmp_path: Path) -> None:
    """As it does when nothing happens to it; the marks before are the same, too."""
    rate = "optimizer.lr=2.01"  # the loss grows by a few per cent a step
    options = (*LOCKSTEP["sync"], "nodes=3", "budget.steps=5000", rate)
    (tmp_path / "undisturbed.skip").touch()
    expected = start(prefork, tmp_path / "undisturbed", *options)
    expected.assert_ends("diverged", 0)
    watched = start(prefork, tmp_path / "run", *options)
    watched.wait_for_marks()
    os.kill(watched.run.pid, signal.SIGINT)
    watched.assert_ends("interrupted", 130)
    resumed = resume(prefork, watched)
    resumed.assert_ends("diverged", 0)
    found, wanted = resumed.run.summary, expected.run.summary
    assert (found["samples"], found["steps"]) == (3 * wanted["steps"], wanted["steps"])
    marks = zip(*(results(run.run.marks[:-1])[:-1] for run in (resumed, expected)), strict=False)
    assert all(mine == theirs for mine, theirs in marks)


def test_a_coordinator_that_is_stopped_for_good_ends_the_run(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING["gossip"], "nodes=3", BUDGET, SILENT)
    os.kill(watched.wait_for_marks()["coordinator"], signal.SIGSTOP)
    assert watched.run.wait() == 1
    watched.assert_nothing_left()
    assert f"the coordinator has been silent for {SILENCE_S:g} s" in watched.run.err.splitlines()
    assert "Traceback" not in watched.run.err
    assert not (watched.run.folder / "summary.json").exists()
    assert read_header(watched.run.folder / NAME)["lines"] > 0
    resume(prefork, watched).assert_ends("completed", 0)
