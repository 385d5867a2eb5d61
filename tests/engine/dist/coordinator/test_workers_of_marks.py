"""Whose accuracies a mark of real processes evaluates: the same workers as in the simulator, at the same marks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.prefork import Prefork
from tests.support.simulate import simulate

OF_WORKERS = ("worker_accuracy_min", "worker_accuracy_mean", "worker_accuracy_max")
RUN = ("algo=dpsgd", "nodes=4", "precision=fp64", "model=mlp", "data=digits", "batch_size=8", "optimizer.lr=0.1")
RUN += ("budget.epochs=null", "eval.every_epochs=null", "seed=1")


def of_workers(marks: list[dict[str, Any]]) -> list[tuple[float | None, ...]]:
    return [tuple(mark[field] for field in OF_WORKERS) for mark in marks]


@pytest.mark.parametrize(
    "options",
    [
        ("eval.workers=2", "budget.steps=7", "eval.every_steps=2"),
        ("eval.workers=none", "budget.steps=200", "eval.every_steps=3", "target.accuracy=0.5", "target.stop=true"),
        ("eval.workers=1", "budget.steps=40", "eval.every_steps=4", "optimizer.lr=1e9", "eval.diverged_factor=10"),
    ],
    ids=["two", "target", "divergence"],
)
def test_both_engines_evaluate_the_same_workers(prefork: Prefork, tmp_path: Path, options: tuple[str, ...]) -> None:
    simulated = simulate(*RUN, *options, "engine=sim")
    run = prefork.run(tmp_path / "run", *RUN, *options, "engine=dist")
    found, expected = of_workers(run.marks), of_workers(simulated.marks)
    if simulated.summary["status"] == "diverged":  # the workers may be a step apart there
        found, expected = ([[value is None for value in of] for of in marks] for marks in (found, expected))
    assert found == expected, run.err
    assert run.summary["status"] == simulated.summary["status"]
    evaluated = of_workers(run.marks)
    assert None not in evaluated[0]
    assert None not in evaluated[-1]
    assert evaluated[-1] == tuple(run.summary[field] for field in OF_WORKERS)
    if "eval.workers=none" in options:
        assert set(evaluated[1:-1]) == {(None, None, None)}


def test_free_running_workers_are_all_evaluated_at_the_end(prefork: Prefork, tmp_path: Path) -> None:
    options = ("algo=gossip", "engine=dist", "budget.time_s=1", "eval.every_time_s=0.3")
    run = prefork.run(tmp_path / "run", *RUN, *options)
    have = [None not in of for of in of_workers(run.marks)]
    assert have == [True, *[False] * (len(have) - 2), True], run.err
    assert len(have) > 2
