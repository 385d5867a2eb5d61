"""Every algorithm of conf/algo/ trains in real processes: a new one is tested by being there."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.engine.dist.test_conformance import DIST, NODES, STEPS, assert_sound, completed, is_lockstep
from tests.engine.dist.test_resume import goes_on_exactly
from tests.support.cases import ALGORITHMS
from tests.support.prefork import Prefork
from tests.support.valid_record import problems
from tests.support.watched_run import CYCLE, EXACT


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_it_uses_its_budget_and_leaves_a_sound_record(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    run = completed(prefork, tmp_path / "run", *DIST, f"algo={algo}", "eval.every_steps=4")
    assert_sound(run.marks, run.summary)
    assert problems(run.folder) == []
    budget = STEPS * NODES
    assert run.summary["samples"] == budget or not is_lockstep(algo)
    assert budget <= run.summary["samples"] <= NODES * budget


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_mini_batch_shows_that_it_diverges(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    options = (f"algo={algo}", "optimizer.lr=30", "precision=fp64", "budget.steps=100000", "eval.every_steps=null")
    run = prefork.start(tmp_path / "run", *DIST, *options)
    assert run.wait() == 0, run.err
    assert run.summary["status"] == "diverged"
    assert problems(run.folder) == []


@pytest.mark.parametrize("algo", EXACT)
def test_a_run_in_lock_step_goes_on_exactly(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    """Every way of keeping vectors, and of having something under way."""
    options = (*EXACT[algo], "optimizer.momentum=0.9", "optimizer.lr=0.01")
    goes_on_exactly(prefork, tmp_path, options, CYCLE[algo], signal.SIGINT)
