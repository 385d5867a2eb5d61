"""Every algorithm of conf/algo/ trains in real processes, a new one by being there; and many workers of one do."""

from __future__ import annotations

import contextlib
import os
import signal
import time
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


@pytest.mark.parametrize("algo", EXACT)
def test_a_run_in_lock_step_goes_on_exactly(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    """Every way of keeping vectors, and of having something under way."""
    options = (*EXACT[algo], "optimizer.momentum=0.9", "optimizer.lr=0.01")
    goes_on_exactly(prefork, tmp_path, options, CYCLE[algo], signal.SIGINT)


WORKERS, MOST_THREADS = 48, 6


def test_many_workers_of_gossip_start_and_complete_with_few_threads(prefork: Prefork, tmp_path: Path) -> None:
    options = ("algo=gossip", "engine=dist", "experiment=quadratic", f"nodes={WORKERS}", "budget.steps=50")
    run = prefork.start(tmp_path / "run", *options)
    threads: dict[int, int] = {}  # the most of each worker
    while (status := run.poll()) is None:
        for name, pid in run.processes().items():
            with contextlib.suppress(FileNotFoundError):  # it has ended
                if name.startswith("worker"):
                    threads[pid] = max(threads.get(pid, 0), len(os.listdir(f"/proc/{pid}/task")))
        time.sleep(0.2)
    assert status == 0, run.err
    assert len(threads) == WORKERS
    assert max(threads.values()) <= MOST_THREADS
    assert run.summary["status"] == "completed"
