"""Time to target: interpolated, first and for good, with its resolution."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.crossing import Aim, Crossing
from dsgd.record.reader import Run, find_runs
from dsgd.report.fields import censored_at_s, crossings, estimate_of, time_to_target_s, unsmoothed_note
from dsgd.report.table import summary_sentences, summary_table
from dsgd.report.table_layout import MISSED, shown
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


def seconds(crossing: Crossing | None) -> float:
    assert crossing is not None
    return crossing.time_s


SMOOTHED = {"target.crossing": "smoothed", "target.window": 3}


def test_a_late_dip_costs_the_stable_crossing_nearly_the_whole_run_and_the_smoothed_one_nothing(tmp_path: Path):
    """At 0.91 from 20 s on, but for one mark at 39 s: by the rule of before the target was reached at 39.33 s only."""
    accuracies: dict[float, float | None]
    accuracies = {0: 0.1, 10: 0.5, 19: 0.89, **{float(t): 0.91 for t in range(20, 39)}, 39: 0.89, 40: 0.92}
    run = run_with(tmp_path / "run", accuracies, **SMOOTHED)
    found = crossings(run)
    assert found.first == found.smoothed
    assert (seconds(found.first), seconds(found.stable)) == pytest.approx((19.5, 39 + 1 / 3))
    assert time_to_target_s(run) == pytest.approx(19.5)
    assert time_to_target_s(run, "stable") == pytest.approx(39 + 1 / 3)
    earlier = run_with(tmp_path / "earlier", accuracies)
    assert time_to_target_s(earlier) == pytest.approx(39 + 1 / 3), "a record without the key is read by the old rule"


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=20), st.sampled_from([1, 3, 5, 7]), st.floats(-2, 2))
def test_the_smoothed_curve_is_at_the_level_where_most_marks_of_a_window_are(values: list[float], w: int, level: float):
    for field, sign in (("test_accuracy", 1), ("test_loss", -1)):
        aim = Aim(field, sign * level, "smoothed", w)
        curve = aim.smoothed([(t, sign * value) for t, value in enumerate(values)])
        for i, (_, value) in enumerate(curve):
            window = values[max(0, i - w // 2) : i + w // 2 + 1]
            assert aim.is_reached(value) == (2 * sum(one >= level for one in window) > len(window))


def test_a_rule_that_there_is_not_ends_in_one_line(tmp_path: Path):
    with pytest.raises(ValueError, match=r"target\.crossing must be one of smoothed, first, stable, got 'last'"):
        time_to_target_s(run_with(tmp_path / "a", {0: 1.0}, **{"target.crossing": "last"}))
    with pytest.raises(ValueError, match=r"target\.window must be an odd number of marks >= 1, got 2"):
        time_to_target_s(run_with(tmp_path / "b", {0: 1.0}, **SMOOTHED | {"target.window": 2}))


def test_a_curve_below_its_target_at_the_end_has_not_reached_it(tmp_path: Path):
    run = run_with(tmp_path / "run", {0: 0.1, 1: 0.95, 2: 0.89})
    assert crossings(run).first is not None
    assert time_to_target_s(run) is None


def test_of_a_completed_run_no_crossing_is_never_by_any_rule(tmp_path: Path):
    """It reached 0.9 by the smoothed curve, and fell back at its end: a longer run might have held it."""
    run = run_with(tmp_path / "a", {0: 0.1, 1: 0.95, 2: 0.95, 3: 0.95, 4: 0.8}, **SMOOTHED)
    assert time_to_target_s(run) is not None
    assert shown(estimate_of([run], "stable_crossing_s")) == f"> {shown(run.final('time_s'))}"
    assert summary_table([run]).caption.endswith(MISSED)
    unreached = run_with(tmp_path / "b", {0: 0.1, 1: 0.2}, **SMOOTHED)
    assert [shown(estimate_of([unreached], f"{rule}_crossing_s"))[0] for rule in ("first", "stable")] == [">"] * 2
    diverged = run_with(tmp_path / "c", {0: 0.1, 1: 0.2}, status="diverged", **SMOOTHED)
    assert shown(estimate_of([diverged], "stable_crossing_s")) == "never"


def test_a_line_says_that_marks_are_too_few_for_the_smoothed_curve(tmp_path: Path):
    short = run_with(tmp_path / "a", {0: 0.1, 1: 0.5, 2: 0.897}, target=0.8, **SMOOTHED)
    long = run_with(tmp_path / "b", {0: 0.1, 1: 0.5, 2: 0.85, 3: 0.897}, target=0.8, **SMOOTHED)
    assert time_to_target_s(short) is None
    note = unsmoothed_note([short, long])
    assert note == (
        "1 run ends at the target without having reached it by the median of 3 marks in a row: 3 marks are too few; "
        "evaluate more often (eval.every_time_s, eval.every_steps) or set target.crossing=first"
    )
    assert note in summary_table([short, long]).caption.split("\n")
    assert note in summary_sentences([short, replace(long, config=long.config | {"nodes": 4})])
    assert unsmoothed_note([long]) == ""
    assert unsmoothed_note([replace(short, summary={**(short.summary or {}), "status": "diverged"})]) == ""


def test_a_mark_at_the_target_counts_and_a_start_above_it_is_a_crossing(tmp_path: Path):
    assert time_to_target_s(run_with(tmp_path / "a", {0: 0.1, 2: 0.9})) == 2
    assert crossings(run_with(tmp_path / "b", {0: 0.95, 2: 0.9})).stable == Crossing(0, 0)


def test_marks_without_accuracy_are_passed_over_and_a_diverged_run_reaches_nothing(tmp_path: Path):
    assert time_to_target_s(run_with(tmp_path / "a", {0: 0.8, 1: None, 2: 1.0, 3: None})) == pytest.approx(1.0)
    diverged = run_with(tmp_path / "b", {0: 0.8, 2: 1.0}, status="diverged")
    assert crossings(diverged).first is not None
    assert censored_at_s(diverged) is None
    assert time_to_target_s(diverged) is None
    for without in ({}, {0.0: None}):
        assert crossings(run_with(tmp_path / f"c{len(without)}", without)).first is None
    assert crossings(run_with(tmp_path / "d", {0: 0.8, 2: 1.0}, target=None)).first is None
