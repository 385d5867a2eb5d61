"""A coordinator that is stopped while its processes come to it: for longer than it lets anybody wait at its door."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.prefork import Prefork
from tests.support.watched_run import ALGORITHMS, start

STOPPED_S = 8.0


@pytest.mark.parametrize("first", ["coordinator", "worker 1"])
@pytest.mark.parametrize("algo", ["sync", "gossip"])
def test_a_run_whose_coordinator_was_stopped_at_its_start_comes_to_an_end(
    prefork: Prefork, tmp_path: Path, algo: str, first: str
) -> None:
    """first: the process whose appearance is the moment. Nobody who has shown the token is turned away; that the run
    goes on is what follows, unless somebody has waited for longer than it may, and says so."""
    options = (*ALGORITHMS[algo], "nodes=2", "budget.steps=20", "engine.timeout_s=5")
    watched = start(prefork, tmp_path / "run", *options)
    watched.skip_pauses()
    watched.run.until(lambda: {"coordinator", first} <= watched.observe().keys())
    coordinator = watched.observe()["coordinator"]
    os.kill(coordinator, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    os.kill(coordinator, signal.SIGCONT)
    code = watched.run.wait()
    assert (code, watched.run.summary["status"]) in ((0, "completed"), (1, "failed")), watched.run.err
    assert code == 0 or "silent for" in watched.run.err
    assert "without a token" not in watched.run.err
    assert "no token in time" not in watched.run.err
    watched.assert_nothing_left()
