"""Real processes on data sets that hold what they cannot share."""

from __future__ import annotations

from pathlib import Path

from tests.support.prefork import Prefork
from tests.system.data.test_own_sets import COUNT, HERE

LINE = ("data=import", "data.decode=each_read", "data.classes=2", "nodes=3", "batch_size=4", "engine=dist")
LINE += ("model.hidden=[]", "algo=sync", "budget.epochs=null", "budget.steps=30", "eval.every_epochs=null")
LINE += ("eval.every_steps=15", "optimizer.lr=0.001")


def test_workers_and_the_coordinator_read_the_samples_that_they_ask_for(tmp_path: Path, prefork: Prefork) -> None:
    """A file with one position, and threads that a forked process lacks: as from memory."""
    path = tmp_path / "set"
    path.write_bytes(bytes(range(COUNT)))
    found = {}
    for target in ("in_memory", "from_file", "by_threads"):
        options = (f"data.target={HERE}{target}", f"data.arguments={{path: '{path}'}}")
        run = prefork.run(tmp_path / target, *LINE, *options)
        assert run.summary["status"] == "completed", run.err
        lines = [line for line in run.err.splitlines() if line.startswith(f"data.target={HERE}{target}")]
        held = [line for line in lines if "reading a batch takes" not in line]
        assert len(held) == (target != "in_memory")
        found[target] = [mark["train_loss"] for mark in run.marks]
    assert len(found["in_memory"]) == 3
    assert found["from_file"] == found["in_memory"] == found["by_threads"]
