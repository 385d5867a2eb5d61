"""Held-out samples in real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.prefork import Prefork
from tests.support.simulate import simulate

HELD_OUT = ("data.validation=0.1", "data.evaluate=validation")


def test_the_marks_are_those_of_the_simulator(prefork: Prefork, tmp_path: Path) -> None:
    line = (*HELD_OUT, "algo=sync", "nodes=2", "budget.epochs=1", "precision=fp64")
    run = prefork.run(tmp_path / "run", *line, "engine=dist")
    assert run.summary["status"] == "completed", run.err
    simulated = simulate(*line, "engine.gradients=loop")
    for field in ("train_loss", "test_loss", "test_accuracy", "epochs"):
        assert run.summary[field] == pytest.approx(simulated.summary[field], rel=1e-9)
