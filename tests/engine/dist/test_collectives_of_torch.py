"""`engine.collectives=torch`: the sums of workers on CPUs by torch's process groups instead of dsgd's ring."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.prefork import Prefork
from tests.support.watched_run import LOCKSTEP, LONG, start

TORCH = "engine.collectives=torch"
EXACT = ("precision=fp64", "nodes=3", "engine=dist", "optimizer.momentum=0.5", "model.hidden=[8]", "batch_size=4")
BUDGET = ("budget.epochs=null", "budget.steps=12", "eval.every_epochs=null", "eval.every_steps=4")
COUNTED = ("samples", "bytes_sent", "bytes_received")


def test_sums_by_torch_give_the_trajectory_of_the_ring(prefork: Prefork, tmp_path: Path) -> None:
    """In double precision: three numbers added in another order differ by a rounding error."""
    options = ("algo=delayfree", "algo.tau=4", *EXACT, *BUDGET)
    by_ring, by_torch = (prefork.run(tmp_path / of, *options, f"engine.collectives={of}") for of in ("own", "torch"))
    assert by_torch.summary["status"] == "completed", by_torch.err
    assert (by_ring.summary["collective"], by_torch.summary["collective"]) == ("ring", "torch")
    assert len(by_ring.marks) == len(by_torch.marks) > 3
    for ours, theirs in zip(by_ring.marks, by_torch.marks, strict=True):
        assert [ours[key] for key in COUNTED] == [theirs[key] for key in COUNTED]
        for key in ("train_loss", "test_loss"):
            assert theirs[key] == pytest.approx(ours[key], rel=1e-10)
        assert theirs["consensus_distance"] == pytest.approx(ours["consensus_distance"], rel=1e-9, abs=1e-12)


def test_a_killed_worker_ends_the_run_with_the_same_line(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *LOCKSTEP["sync"], "nodes=3", LONG, TORCH)
    os.kill(watched.wait_for_marks()["worker 1"], signal.SIGKILL)
    watched.assert_ends("failed", 1)
    error = watched.run.summary["error"]
    assert error.startswith("worker 1 has died after "), error
    assert error.endswith("; sync cannot go on without it")
    assert error in watched.run.err
