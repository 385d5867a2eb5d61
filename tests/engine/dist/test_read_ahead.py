"""Runs on data that processes read ahead: what they compute, and that nothing is left of the processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.prefork import Prefork
from tests.support.proc import is_alive, processes
from tests.system.data.test_ahead import BATCH, HERE, SLOW_S

PATIENCE_S = 60  # after which a test gives up; nothing is measured with it
LINE = [
    "data=import",
    f"data.target={HERE}drawn",
    "data.classes=2",
    "nodes=2",
    f"batch_size={BATCH}",
    "model.hidden=[]",
]
LINE += ["algo=sync", "optimizer.lr=0.001", "eval.every_epochs=null", "eval.every_steps=25", "budget.epochs=null"]


def test_both_engines_read_ahead_and_compute_what_they_did(tmp_path: Path, prefork: Prefork) -> None:
    losses = []
    for engine, slow_s in (("sim", 0), ("sim", SLOW_S), ("dist", SLOW_S)):
        options = ["budget.steps=26", f"engine={engine}", f"data.arguments={{slow_s: {slow_s}}}"]
        run = prefork.run(tmp_path / f"{engine}{slow_s}", *LINE, *options)
        assert run.summary["status"] == "completed", run.err
        assert run.err.count("reading a batch takes") == 1
        assert " ms, ahead in " in run.err or not slow_s
        losses.append([mark["train_loss"] for mark in run.marks])
    assert losses[0] == losses[1]
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize(("engine", "number"), [("sim", signal.SIGINT), ("dist", signal.SIGKILL)])
def test_processes_end_with_the_run_however_it_ends(engine: str, number: int, tmp_path: Path, prefork: Prefork) -> None:
    """A Ctrl-C comes to all processes of a terminal. Real processes mark once a second: the marks that wait when it
    comes are still evaluated, at the lowest priority, which takes long on a busy machine."""
    marks = {"sim": [], "dist": ["eval.every_steps=null", "eval.every_time_s=1"]}[engine]
    options = ["budget.steps=1000000", f"engine={engine}", "engine.threads=2", *marks]
    run = prefork.start(tmp_path / "run", *LINE, *options)
    run.until(lambda: len(run.marks) > 1)
    parents = {pid: parent for pid, _, parent in processes()}
    inside = lambda pid: pid == run.pid or (pid in parents and inside(parents[pid]))  # noqa: E731
    readers = [pid for pid, name, _ in processes() if name == "reader" and inside(pid)]
    assert len(readers) >= 2  # with engine=dist more on a machine of many cores
    if number == signal.SIGINT:
        for pid in readers:
            os.kill(pid, number)
    os.kill(run.pid, number)
    run.wait()
    deadline = time.monotonic() + PATIENCE_S
    while left := [pid for pid in readers if is_alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    if number == signal.SIGINT:
        assert run.summary["status"] == "interrupted", run.err
        assert run.summary["error"] is None
