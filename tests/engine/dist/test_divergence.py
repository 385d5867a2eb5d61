"""Real processes end at the mini-batch that shows divergence: when, how, and with what left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.prefork import Prefork
from tests.support.valid_record import problems
from tests.support.watched_run import LOCKSTEP

NODES = 3
DIST = ("experiment=quadratic", f"nodes={NODES}", "engine=dist", "engine.patience_s=60", "budget.steps=100000")
NO_MARKS = ("eval.every_steps=null", "eval.every_epochs=null")


@pytest.mark.parametrize(("algo", "how"), [("sync", "exploding"), ("gossip", "exploding"), ("easgd", "infinite")])
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


def test_no_mark_before_the_last_is_beyond_the_limit_and_what_is_no_number_is_null(
    prefork: Prefork, tmp_path: Path
) -> None:
    run = prefork.start(tmp_path / "run", *DIST, "algo=downpour", "optimizer.lr=50", "eval.every_steps=2")
    assert run.wait() == 0, run.err
    assert run.summary["status"] == "diverged"
    losses = [mark["train_loss"] for mark in run.marks]
    assert all(loss is not None and loss <= 1e6 * max(losses[0], 1) for loss in losses[:-1])
    assert "NaN" not in (run.folder / "metrics.jsonl").read_text() + (run.folder / "summary.json").read_text()
    assert (run.summary["samples"], run.summary["time_s"]) == (run.marks[-1]["samples"], run.marks[-1]["time_s"])


def test_a_run_that_has_diverged_by_its_last_mark_says_so(prefork: Prefork, tmp_path: Path) -> None:
    """Whether a mini-batch shows it first, or a verdict that comes only when everybody has ended."""
    run = prefork.start(tmp_path / "run", *DIST, *NO_MARKS, "algo=easgd", "optimizer.lr=50", "budget.steps=20")
    assert run.wait() == 0, run.err
    assert run.summary["status"] == "diverged"


def test_a_mark_of_every_step_is_there_up_to_the_event(prefork: Prefork, tmp_path: Path) -> None:
    """Snapshots take longer than the word that a run has diverged, and none is lost of a step that all have made."""
    options = ("eval.every_steps=1", *LOCKSTEP["dpsgd"], "optimizer.lr=2.3")
    run = prefork.start(tmp_path / "run", *DIST, *options)
    assert run.wait() == 0, run.err
    samples = [mark["samples"] for mark in run.marks]
    assert run.summary["status"] == "diverged"
    assert problems(run.folder) == []
    steps = [count // NODES for count in samples if count % NODES == 0]
    assert steps == sorted(set(steps))
    assert steps[-1] >= run.summary["steps"] - 1
    assert run.summary["samples"] == samples[-1]
