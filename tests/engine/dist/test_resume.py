"""Runs in real processes that are interrupted, or cannot write, and go on from their checkpoint."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

from dsgd.record.checkpoint_file import NAME, read_header, read_state
from tests.engine.dist.test_conformance import assert_crossings_are_those_of_the_marks
from tests.support.prefork import Prefork
from tests.support.valid_record import Stored, problems, stored
from tests.support.watched_run import (
    BUDGET,
    CYCLE,
    EXACT,
    FREE_RUNNING,
    LONG,
    STEPS,
    WatchedRun,
    results,
    resume,
    start,
    undisturbed,
)  # fmt: skip

WAYS = ("sent", "received")
MOMENTUM = ("algo=easgd", "algo.momentum=0.9", "algo.servers=2", "optimizer.momentum=0")
LARGE = "data.dim=20000"  # a checkpoint of half a megabyte


def interrupted(watched: WatchedRun) -> Stored:
    """Interrupt a run; returns what its checkpoint says, which must be what its summary does."""
    os.kill(watched.run.pid, signal.SIGINT)
    watched.assert_ends("interrupted", 130)
    saved, summary = stored(watched.run.folder), watched.run.summary
    assert saved is not None
    assert saved.lines == len(watched.run.marks)
    found = [summary[field] for field in ("time_s", "samples", "bytes_sent_total", "messages_lost")]
    assert found == [saved.time_s, saved.samples, saved.bytes_sent, saved.messages_lost]
    return saved


def test_a_run_in_lock_step_goes_on_exactly(prefork: Prefork, tmp_path: Path) -> None:
    options = (*EXACT["delayfree"], "optimizer=adamw", "optimizer.lr=0.01")
    goes_on_exactly(prefork, tmp_path, options, CYCLE["delayfree"], signal.SIGTERM)


def goes_on_exactly(prefork: Prefork, folder: Path, algo: tuple[str, ...], cycle: int, number: int) -> None:
    """Interrupt a run by a signal, go on, and compare with the run to which nothing happens."""
    options = (*algo, "nodes=3", BUDGET)
    expected = undisturbed(prefork, folder / "undisturbed", *options)
    losses = [mark["test_loss"] for mark in expected.run.marks]
    watched = start(prefork, folder / "run", *options, f"target.loss={losses[len(losses) // 2]}")
    watched.wait_for_marks()
    os.kill(watched.run.pid, number)
    watched.assert_ends("interrupted", 130)
    assert watched.run.marks[-1]["samples"] < 3 * STEPS
    assert f"interrupted; resume with: dsgd-run resume={watched.run.folder}" in watched.run.out
    resumed = resume(prefork, watched)
    resumed.assert_ends("completed", 0)
    assert results(resumed.run.marks, cycle) == results(expected.run.marks, cycle)
    sent, received = ([run.summary[f"bytes_{way}_total"] for run in (expected.run, resumed.run)] for way in WAYS)
    assert sent == received == 2 * sent[:1]  # to the byte: what was under way at the checkpoint is counted once
    assert_crossings_are_those_of_the_marks(resumed.run)
    assert not (resumed.run.folder / NAME).exists()


def test_a_free_running_run_goes_on_and_keeps_its_budget(prefork: Prefork, tmp_path: Path) -> None:
    """Nobody makes more steps than the whole budget has; how many more all make together is a matter of time."""
    watched = start(prefork, tmp_path / "run", *MOMENTUM, "nodes=3", BUDGET)
    watched.wait_for_marks()
    saved = interrupted(watched)
    resumed = resume(prefork, watched)
    resumed.assert_ends("completed", 0)
    assert problems(resumed.run.folder, saved) == []
    assert 3 * STEPS <= resumed.run.marks[-1]["samples"] <= 3 * 3 * STEPS


def test_an_interrupt_before_training_leaves_a_run_to_go_on_with(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING["easgd"], "nodes=3", "budget.steps=60")
    watched.run.until(lambda: "worker 2" in watched.observe())
    os.kill(watched.run.pid, signal.SIGINT)
    watched.assert_ends("interrupted", 130)
    resume(prefork, watched).assert_ends("completed", 0)


def test_a_second_interrupt_ends_the_run_at_once(prefork: Prefork, tmp_path: Path) -> None:
    waiting = "engine.checkpoint_every_s=0.2"
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING["gossip"], "nodes=3", LONG, waiting)
    os.kill(watched.wait_for_marks(5)["worker 1"], signal.SIGSTOP)
    os.kill(watched.run.pid, signal.SIGINT)  # waits for everybody
    signal.sigtimedwait([], 0.5)
    os.kill(watched.run.pid, signal.SIGINT)
    watched.assert_ends("interrupted", 130)
    read_header(watched.run.folder / NAME)


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(prefork: Prefork, tmp_path: Path) -> None:
    options = ("algo=sync", "nodes=3", BUDGET, "engine.checkpoint_every_s=0.1", LARGE)
    watched = start(prefork, tmp_path / "run", *options)
    coordinator = watched.wait_for_marks(5)["coordinator"]
    resource.prlimit(coordinator, resource.RLIMIT_FSIZE, (100_000, 100_000))  # as on a full disk
    watched.assert_ends("failed", 1)
    (line,) = [line for line in watched.run.err.splitlines() if "File too large" in line]
    assert watched.run.summary["error"] == line
    assert read_header(watched.run.folder / NAME)["lines"] > 0
    resume(prefork, watched).assert_ends("completed", 0)


def test_a_completed_run_goes_on_with_a_larger_budget(prefork: Prefork, tmp_path: Path) -> None:
    """In lock-step as if it had had that from the beginning, from the latest checkpoint: which is not of the last step,
    after which there may be a shorter round to average."""
    options = ("algo=diloco", "algo.tau=7", "experiment=quadratic", "nodes=2", "engine=dist", "eval.every_steps=20")
    options += ("optimizer.momentum=0.9", "optimizer.lr=0.01")
    kept = ("engine.checkpoint_every_s=0.001", "engine.keep_checkpoint=true")
    expected = prefork.run(tmp_path / "whole", *options, "budget.steps=80")
    run = prefork.run(tmp_path / "run", *options, "budget.steps=40", *kept)
    assert run.summary["status"] == "completed", run.err
    assert (run.folder / NAME).exists(), run.err
    assert all(stored["steps"] < 40 for stored in read_state(run.folder / NAME)["workers"])
    extended = prefork.run(tmp_path / "run", f"resume={run.folder}", "resume_trusted=true", "budget.steps=80")
    assert extended.summary["status"] == "completed", extended.err
    assert results(extended.marks, 1) == results(expected.marks, 1)
    assert [budget["steps"] for budget in extended.summary["extended"]] == [40]
