"""Real processes end at the mini-batch that shows divergence: when, how, and with what left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.cases import ALGORITHMS, WAITING
from tests.support.long import all_long_but, long_but
from tests.support.prefork import Prefork
from tests.support.valid_record import problems
from tests.support.watched_run import CYCLE, LOCKSTEP, WatchedRun, results, start

NODES = 3
DIST = ("experiment=quadratic", f"nodes={NODES}", "engine=dist", "engine.patience_s=60", "budget.steps=100000")
NO_MARKS = ("eval.every_steps=null", "eval.every_epochs=null")


@pytest.mark.parametrize(
    ("algo", "how"),
    all_long_but(
        {*((algo, "exploding") for algo in ("downpour", "gossip", "sync")), ("easgd", "infinite")},
        [*((algo, "exploding") for algo in ALGORITHMS), *((algo, "infinite") for algo in WAITING)],
    ),
)
def test_a_mini_batch_ends_the_run_without_any_mark(prefork: Prefork, tmp_path: Path, algo: str, how: str) -> None:
    """Long before the budget, at the event's time; the mark at the end is the only one besides the first."""
    rate, precision = ("30", "fp64") if how == "exploding" else ("1e30", "fp32")
    options = (f"algo={algo}", f"optimizer.lr={rate}", f"precision={precision}")
    run = prefork.start(tmp_path / "run", *DIST, *NO_MARKS, *options)
    assert run.wait() == 0, run.err
    summary, marks = run.summary, run.marks
    assert (summary["status"], summary["error"]) == ("diverged", None)
    assert len(marks) == 2
    assert 0 < summary["samples"] == marks[-1]["samples"] < 100000
    assert 0 < summary["time_s"] == marks[-1]["time_s"]
    assert problems(run.folder) == []


@pytest.mark.long
@pytest.mark.parametrize("algo", long_but(["sync"], LOCKSTEP))
def test_lock_step_diverges_at_the_same_step_after_resuming(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    """As it does when nothing happens to it; the marks before are the same, too. With EASGD in turn workers are up to a
    round of 3 steps apart, and whose mini-batch is the first to show it is a race: within a round."""
    rate = {"dpsgd": 1.02, "sgp": 0.9}.get(algo, 2.01)  # the loss grows by a few per cent a step
    options = (*LOCKSTEP[algo], f"nodes={NODES}", "budget.steps=5000", f"optimizer.lr={rate}")
    (tmp_path / "undisturbed.skip").touch()
    expected = start(prefork, tmp_path / "undisturbed", *options)
    expected.assert_ends("diverged", 0)
    watched = start(prefork, tmp_path / "run", *options)
    watched.wait_for_marks()
    os.kill(watched.run.pid, signal.SIGINT)
    watched.assert_ends("interrupted", 130)
    watched.skip_pauses()
    resumed = WatchedRun(
        prefork.start(watched.run.folder, f"resume={watched.run.folder}", "resume_trusted=true"), watched.shared
    )
    resumed.assert_ends("diverged", 0)
    found, wanted = resumed.run.summary, expected.run.summary
    assert found["samples"] == NODES * found["steps"]
    assert abs(found["steps"] - wanted["steps"]) <= (3 if algo == "easgd in turn" else 0)
    marks = zip(*(results(run.run.marks[:-1], CYCLE[algo])[:-1] for run in (resumed, expected)), strict=False)
    assert all(mine == theirs for mine, theirs in marks)


@pytest.mark.parametrize("algo", long_but(["dpsgd"], LOCKSTEP))
def test_a_mark_of_every_step_is_there_up_to_the_event(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    """Snapshots take longer than the word that a run has diverged, and none is lost of a step that all have made."""
    options = ("eval.every_steps=1", *LOCKSTEP[algo], "optimizer.lr=2.3")
    run = prefork.start(tmp_path / "run", *DIST, *options)
    assert run.wait() == 0, run.err
    samples = [mark["samples"] for mark in run.marks]
    assert run.summary["status"] == "diverged"
    assert problems(run.folder) == []
    steps = [count // NODES for count in samples if count % NODES == 0]
    assert steps == sorted(set(steps))
    assert steps[-1] >= run.summary["steps"] - 1
    assert run.summary["samples"] == samples[-1]
