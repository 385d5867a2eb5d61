"""A run is killed at every one of its writes, at first and while it is extended."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsgd.record.reader import find_runs
from tests.engine.runner.test_killed_writes import RUN, assert_goes_on_after_kills, is_held, killed


@pytest.mark.parametrize("engine", ["sim", "dist"])
def test_at_every_moment_there_is_a_checkpoint_or_a_summary(tmp_path: Path, engine: str) -> None:
    assert_goes_on_after_kills(tmp_path, engine, step=1)


@pytest.mark.parametrize("engine", ["sim", "dist"])
def test_a_run_that_is_killed_while_it_is_extended_never_claims_what_is_not_so(tmp_path: Path, engine: str) -> None:
    """Its record says completed only with all steps of the configuration beside it, and so does the exit status."""
    line = [*RUN, f"engine={engine}", "engine.keep_checkpoint=true"]
    claims = set[tuple[int, int]]()
    for kill in killed(tmp_path, 1, *line, "--extend", "budget.steps=4"):
        folder = tmp_path / str(kill["number"])
        assert is_held(folder / "killed"), f"there is nothing to go on from: {kill}"
        (left,) = find_runs([folder / "killed"])
        if left.status == "completed":
            assert left.final("steps") == left.setting("budget.steps"), kill
            claims.add((left.setting("budget.steps"), kill["first"]))
        assert kill["second"] == 0 or "which is completed, got the same" in kill["said"], kill
        (run,) = find_runs([folder / "run"])
        assert (run.status, run.setting("budget.steps"), run.final("steps")) == ("completed", 4, 4), kill
        assert run.final("extended") == [{**run.setting("budget"), "steps": 2}], kill
        assert [mark["samples"] for mark in run.metrics] == [0, 2, 4, 6, 8], kill
    killed_status = -9 if engine == "sim" else 1
    assert (2, killed_status) in claims  # it was not yet touched: the first kill is before the first write
    assert claims <= {(2, killed_status), (4, 0), (4, -9)}
