"""Time to target: interpolated, first and for good, with its resolution."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.crossing import Aim, Crossing
from dsgd.record.reader import Run, find_runs
from dsgd.report.crossing import first_crossing, staying_crossing, time_to_target_s
from tests.support.records import write_record


def run_with(folder: Path, accuracies: Mapping[float, float | None], **changes: Any) -> Run:
    """A run with a mark for each time and its accuracy; its target is 0.9 unless told."""
    write_record(folder, "sync", **changes)
    marks = [{"time_s": time_s, "clock": "virtual", "test_accuracy": value} for time_s, value in accuracies.items()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(mark) + "\n" for mark in marks))
    return find_runs([folder])[0]


@given(
    st.floats(0.1, 10), st.floats(-3, 3), st.floats(0.01, 0.99), st.lists(st.floats(0.01, 5), min_size=2, max_size=20)
)
def test_a_straight_line_crosses_where_its_equation_says(slope: float, start: float, share: float, gaps: list[float]):
    """start + slope t = level at t = (level - start) / slope, wherever the marks are."""
    times = [sum(gaps[:i]) for i in range(len(gaps) + 1)]
    crossing_s = share * times[-1]
    (found,) = Aim("test_accuracy", start + slope * crossing_s).crossings([(t, start + slope * t) for t in times])
    assert found.time_s == pytest.approx(crossing_s, abs=1e-9 * (1 + times[-1]))
    assert any(found.resolution_s == pytest.approx(gap) for gap in gaps)


@given(st.floats(-2, 2), st.lists(st.floats(-2, 2), min_size=1, max_size=20))
def test_a_loss_falls_to_its_target_as_an_accuracy_rises_to_it(level: float, values: list[float]):
    found = Aim("test_accuracy", level).crossings(list(enumerate(values)))
    assert Aim("test_loss", -level).crossings([(t, -value) for t, value in enumerate(values)]) == found
    assert bool(found) == any(value >= level for value in values)


@pytest.mark.parametrize("marks", [10, 40, 160])
def test_the_error_on_a_curve_falls_with_the_square_of_the_resolution(marks: int):
    """1 - exp(-t) reaches 0.8 at log 5; a chord of width h is off by at most h^2 / 8 max|f''| / min|f'| there."""
    times = [8 * i / marks for i in range(marks + 1)]
    (risen,) = Aim("test_accuracy", 0.8).crossings([(t, 1 - math.exp(-t)) for t in times])
    (fallen,) = Aim("test_loss", 0.2).crossings([(t, math.exp(-t)) for t in times])
    h = 8 / marks
    for found in (risen, fallen):
        assert found.resolution_s == pytest.approx(h)
        assert abs(found.time_s - math.log(5)) <= h**2 / 8 * math.exp(h)


def test_a_curve_that_falls_back_has_a_first_crossing_and_a_later_one_that_stays(tmp_path: Path):
    """0.8 to 1.0 in 1 s meets 0.9 in the middle; then below, then from 0.7 to 1.0 in 3 s: after two thirds of it."""
    run = run_with(tmp_path / "run", {0: 0.8, 1: 1.0, 2: 0.7, 5: 1.0, 6: 0.95})
    first, staying = first_crossing(run), staying_crossing(run)
    assert first is not None
    assert staying is not None
    assert (first.time_s, first.resolution_s) == pytest.approx((0.5, 1))
    assert (staying.time_s, staying.resolution_s) == pytest.approx((4.0, 3))
    assert time_to_target_s(run) == pytest.approx(4.0)


def test_a_curve_below_its_target_at_the_end_has_not_reached_it(tmp_path: Path):
    run = run_with(tmp_path / "run", {0: 0.1, 1: 0.95, 2: 0.89})
    assert first_crossing(run) is not None
    assert time_to_target_s(run) is None


def test_a_mark_at_the_target_counts_and_a_start_above_it_is_a_crossing(tmp_path: Path):
    assert time_to_target_s(run_with(tmp_path / "a", {0: 0.1, 2: 0.9})) == 2
    assert staying_crossing(run_with(tmp_path / "b", {0: 0.95, 2: 0.9})) == Crossing(0, 0)


def test_marks_without_accuracy_are_passed_over_and_a_diverged_run_reaches_nothing(tmp_path: Path):
    assert time_to_target_s(run_with(tmp_path / "a", {0: 0.8, 1: None, 2: 1.0, 3: None})) == pytest.approx(1.0)
    diverged = run_with(tmp_path / "b", {0: 0.8, 2: 1.0}, status="diverged")
    assert first_crossing(diverged) is not None
    assert time_to_target_s(diverged) is None
    for without in ({}, {0.0: None}):
        assert first_crossing(run_with(tmp_path / f"c{len(without)}", without)) is None
    assert first_crossing(run_with(tmp_path / "d", {0: 0.8, 2: 1.0}, target=None)) is None


def test_a_target_of_the_loss_is_read_from_the_test_loss(tmp_path: Path):
    """2 to 1 in 1 s meets 1.25 after three quarters of it; then above, then from 2 to 0.5 in 3 s: after half of it."""
    write_record(tmp_path / "run", "sync", target_loss=1.25)
    losses = {0: 2.0, 1: 1.0, 2: 2.0, 5: 0.5, 6: 1.25}
    marks = [{"time_s": time_s, "test_loss": value, "test_accuracy": 1.0} for time_s, value in losses.items()]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(mark) + "\n" for mark in marks))
    (run,) = find_runs([tmp_path])
    assert (run.target_field, run.target) == ("test_loss", 1.25)
    assert first_crossing(run) == Crossing(0.75, 1)
    assert staying_crossing(run) == Crossing(3.5, 3)
