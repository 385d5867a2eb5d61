"""Runs under other conditions that were derived: the same as if they had been measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsgd.cli.run import main
from dsgd.comparison.stages import WAITS, can_derive, whatif_run
from dsgd.record.reader import Run, find_runs
from dsgd.report.fields import time_to_target_s

LINE = (
    "nodes=4", "budget.epochs=4", "eval.every_epochs=0.5", "target.accuracy=0.7", "seed=3",
    "cluster.gradient_s=0.01",
)  # fmt: skip
SLOW = ("cluster.bandwidth=1e6", "cluster.slow_nodes={1: 4.0}", "cluster.jitter=0.2")


def run(folder: Path, *overrides: str) -> Run:
    assert main([*LINE, *overrides, f"hydra.run.dir={folder}"]) == 0
    return find_runs([folder])[0]


def test_a_derived_run_has_the_marks_of_a_measured_one(tmp_path: Path) -> None:
    line = ("algo=sync", "optimizer.lr=0.1")
    before = run(tmp_path / "before", *line)
    wanted = run(tmp_path / "wanted", *line, *SLOW)
    timing = run(tmp_path / "timing", *line, *SLOW, "engine.gradients=none")
    assert can_derive(before, barrier=True, keys=["cluster.bandwidth", "cluster.slow_nodes"])
    found = whatif_run(before, timing)
    for one, other in zip(found.metrics, wanted.metrics, strict=True):
        assert one["time_s"] == pytest.approx(other["time_s"], rel=1e-9)
        assert (one["samples"], one["test_accuracy"]) == (other["samples"], other["test_accuracy"])
    assert time_to_target_s(found) == pytest.approx(time_to_target_s(wanted), rel=1e-9)
    assert time_to_target_s(found) != time_to_target_s(before)
    assert found.summary is not None
    assert wanted.summary is not None
    for field in ("time_s", "time_to_target_s", "target_resolution_s", "first_crossing_s", *WAITS):
        assert found.summary[field] == pytest.approx(wanted.summary[field], rel=1e-9), field
    assert found.summary.keys() == wanted.summary.keys()


def test_only_the_times_of_algorithms_with_a_barrier_can_be_derived(tmp_path: Path) -> None:
    found = run(tmp_path / "run", "algo=sync")
    assert not can_derive(found, barrier=False, keys=["cluster.bandwidth"])
    assert not can_derive(found, barrier=True, keys=["nodes"])
    short = run(tmp_path / "short", "algo=sync", "budget.time_s=0.01")
    assert not can_derive(short, barrier=True, keys=["cluster.bandwidth"])  # it may get there with more time
