"""Summarise runs: in a table with one row per configuration, medians and intervals over its seeds; in sentences; and in
rows for a data frame, plain dictionaries with a key for each column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from dsgd.record.reader import Run, number
from dsgd.report.fields import (
    DERIVED,
    estimate_of,
    field_value,
    rule_text,
    time_ratio,
    time_to_target_s,
    unsmoothed_note,
)
from dsgd.report.interval import Estimate, estimate, interval_note
from dsgd.report.labels import (
    Series,
    clock_text,
    differing_settings,
    goal_text,
    series,
    status_note,
    status_text,
    time_notes,
)
from dsgd.report.prediction import sentences
from dsgd.report.setting import setting_text, whole_setting
from dsgd.report.table_layout import Cell, ReportTable, exact, missed_note

NOT_YET = "not yet"  # the run has no summary: it is running, or was killed

# heading: (field, factor from its unit to the heading's); the most important first
_COLUMNS: dict[str, tuple[str, float]] = {
    "time to target (s)": ("time_to_target_s", 1),
    "test accuracy": ("test_accuracy", 1),
    "test loss": ("test_loss", 1),
    "perplexity": ("perplexity", 1),
    "time (s)": ("time_s", 1),
    "idle mean (%)": ("idle_fraction_mean", 100.0),
    "sent (GB)": ("bytes_sent_total", 1e-9),
    "epochs": ("epochs", 1),
    "samples": ("samples", 1),
    "test top-5": ("test_top5", 1),
    "idle max (%)": ("idle_fraction_max", 100.0),
    "first crossing (s)": ("first_crossing_s", 1),
    "stable crossing (s)": ("stable_crossing_s", 1),
    "resolution (s)": ("target_resolution_s", 1),
}


def summary_table(runs: Sequence[Run]) -> ReportTable:
    """Return the table of the runs, in the order of `by_time`; columns without any value are omitted.

    In the CSV file each run has a line, with every key in which configurations differ."""
    ordered = by_time(runs)
    columns: dict[str, list[Cell]] = {"run": [group.label for group in ordered]}
    cells = {heading: [_cell(group, *what) for group in ordered] for heading, what in _COLUMNS.items()}
    measured = {name: some for name, some in cells.items() if any(isinstance(c, str) or c.count for c in some)}
    status: dict[str, list[Cell]] = {"status": [status_text(group.runs) for group in ordered]}
    bad = any(run.outcome != "completed" for run in runs)
    if "time to target (s)" in measured:
        columns["time to target (s)"] = measured.pop("time to target (s)")
    if any(len(group.runs) > 1 for group in ordered):
        columns["seeds"] = [len(group.runs) for group in ordered]
    columns |= (status if bad else {}) | measured | status
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    below, texts = "\n".join([caption(runs), *missed_note(rows)]), frozenset({"run", "status"})
    return ReportTable(list(columns), texts, rows, _csv_rows(ordered), below, whole=whole_setting(runs))


def by_time(runs: Sequence[Run]) -> list[Series]:
    """Gather the runs by configuration and sort them: soonest at its target first, by the median over seeds, then by
    total time; runs without a target last.

    Virtual and wall time have no common order: if both occur, configurations are grouped by clock."""
    return sorted(series(runs), key=lambda group: (group.runs[0].clock or "without", *_order(group)))


def caption(runs: Sequence[Run]) -> str:
    """Return the caption: clock, target, network of the times, meaning of intervals, resolution of times to target, and
    the setting of the runs."""
    parts = [f"times: {clock} time"] if (clock := clock_text(runs)) else []
    parts += [f"target: {goal}" + _resolution(runs)] if (goal := goal_text(runs)) else []
    lines = ["; ".join([*parts, *time_notes(runs)])]
    lines += [unsmoothed_note(runs), interval_note([len(group.runs) for group in series(runs)]), setting_text(runs)]
    return "\n".join(line for line in lines if line)


def _resolution(runs: Sequence[Run]) -> str:
    distances = [distance for run in runs if (distance := field_value(run, "target_resolution_s")) >= 0]
    if not distances:
        return ""
    least, most = f"{min(distances):.3g}", f"{max(distances):.3g}"
    apart = least if least == most else f"{least} to {most}"
    return f", reached {rule_text(runs)}, interpolated between marks {apart} s apart"


def _cell(group: Series, field: str, factor: float) -> Any:
    aims = [run for run in group.runs if run.status == "running" and run.target is not None]
    if field == "time_to_target_s" and any(math.isnan(field_value(run, field)) for run in aims):
        return NOT_YET
    return estimate_of(group.runs, field, factor)


def _csv_rows(ordered: Sequence[Series]) -> list[list[Any]]:
    runs = [run for group in ordered for run in group.runs]
    settings = differing_settings(runs)
    fields = [field for field, _ in _COLUMNS.values()]
    lines: list[list[Any]] = [
        ["run", "folder", "status", "clock", "target_accuracy", "target_loss", *settings, *fields]
    ]
    labels = [group.label for group in ordered for _ in group.runs]
    for i, (name, run) in enumerate(zip(labels, runs, strict=True)):
        described = [name, str(run.folder), run.outcome, run.clock or ""]
        described += [
            exact(number(run.target if run.target_field == field else None)) for field in ("test_accuracy", "test_loss")
        ]
        chosen = [texts[i] for texts in settings.values()]
        lines.append([*described, *chosen, *(exact(field_value(run, field)) for field in fields)])
    return lines


def _order(group: Series) -> tuple[int, float, float]:
    to_target = estimate([field_value(run, "time_to_target_s") for run in group.runs]).median
    time_s = estimate([number(run.final("time_s")) for run in group.runs]).median
    time_s = math.inf if math.isnan(time_s) else time_s
    if all(run.target is None for run in group.runs):
        return 2, 0.0, time_s
    return (1, 0.0, time_s) if not math.isfinite(to_target) else (0, to_target, time_s)


_OF_CLOCK = {"virtual": "of virtual time", "wall": "of wall time on the machine it ran on"}


def summary_sentences(runs: Sequence[Run]) -> list[str]:
    """Return sentences on the first to reach the target, on runs that never did, did not complete or collapsed, and on
    the most idle one.

    The median over seeds counts, and for ratios the median of the ratios of the same seed. Returns no sentence without
    a comparison. Virtual and wall times are compared only in the sentence on predictions and measurements."""
    compared = series(runs)
    if len(compared) < 2:
        return []
    clocks = sorted({clock for group in compared if (clock := _clock(group))})
    timed = [[group for group in compared if _clock(group) in (clock, None)] for clock in clocks]
    rivals = [(clock, groups) for clock, groups in zip(clocks, timed, strict=True) if len(groups) > 1]
    first = [text for clock, groups in rivals for text in _first_to_target(groups, clock)]
    idle = [text for _, groups in rivals for text in _most_idle(groups)]
    texts = [*first, unsmoothed_note(runs), *_ended_badly(compared), *idle, *sentences(runs)]
    return [text for text in texts if text]


def _clock(group: Series) -> str | None:
    return next((run.clock for run in group.runs if run.clock), None)


def _first_to_target(compared: Sequence[Series], clock: str) -> list[str]:
    targets = {(run.target_field, run.target) for group in compared for run in group.runs}
    if len(targets) != 1 or (None, None) in targets:
        return []
    kind, _, level = goal_text(compared[0].runs).rpartition(" ")
    goal = f"a {kind} of {level}"
    reached: list[tuple[float, Series]] = []
    missed: list[str] = []
    for group in compared:
        known = [seconds for run in group.runs if (seconds := time_to_target_s(run)) is not None]
        without, count = len(group.runs) - len(known), len(group.runs)
        if not without:
            reached.append((median(known), group))
        elif all(run.status == "completed" for run in group.runs):
            missed.append(f"{group.label} ({without} of {count} seeds)" if known else group.label)
    texts = []

    def sooner(group: Series) -> int:
        """Return the number of others that are sooner on most of the common seeds."""
        return sum(time_ratio(other.runs, group.runs).median < 1 for _, other in reached if other is not group)

    if reached:
        best_s, first = min(reached, key=lambda each: (sooner(each[1]), each[0], each[1].label))
        slower = [each for each in reached if each[1] is not first]
        others = [(seconds, group, time_ratio(group.runs, first.runs)) for seconds, group in slower]
        others.sort(key=lambda each: (math.isnan(each[2].median), each[2].median, each[0], each[1].label))
        behind = [f"{group.label} {_ratio_text(seconds, ratio)}" for seconds, group, ratio in others if best_s > 0]
        text = f"{first.label} reaches {goal} first, after {best_s:.3g} s {_OF_CLOCK[clock]}"
        texts.append(text + (f"; times as long, seed by seed: {', '.join(behind)}" if behind else ""))
    if missed:
        texts.append(f"{goal} is not reached within the budget by {', '.join(missed)}")
    return texts


def _ratio_text(seconds: float, ratio: Estimate) -> str:
    """Return a ratio with its interval over seeds; without a common seed with the first, the median time."""
    if not ratio.count:
        return f"({seconds:.3g} s, no seed in common)"
    interval = f" [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio.low < ratio.high else ""
    return f"{ratio.median:.2f}{interval}"


def _ended_badly(compared: Sequence[Series]) -> list[str]:
    texts = []
    for group in compared:
        if note := status_note(group.runs):
            completed = all(run.status == "completed" for run in group.runs)
            texts.append(f"{'ended worse than it began' if completed else 'did not complete'}: {group.label}{note}")
    return texts


def _most_idle(compared: Sequence[Series]) -> list[str]:
    idle: list[tuple[float, str]] = []
    for group in compared:
        shares = [number(run.final("idle_fraction_mean")) for run in group.runs]
        if all(share == share for share in shares):  # not NaN
            idle.append((median(shares), group.label))
    if len(idle) < 2 or min(idle)[0] == max(idle)[0]:
        return []
    (least, patient), (most, waiting) = min(idle), max(idle)
    return [f"{waiting} waits most, its workers are idle {most:.0%} of the time; {patient} least, {least:.0%}"]


# keys that are columns even if all runs agree
IMPORTANT = ("algo.name", "model.name", "data.name", "topology.name", "nodes", "batch_size", "optimizer.lr", "seed")


def run_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row for each run; all have the same keys, in the same order.

    The keys are: folder, status, outcome; the important keys of the configuration, and keys in which the runs differ;
    the fields of the summaries; the derived fields. Derived fields are infinite for a target never reached and NaN if
    unknown. A derived field replaces the summary's field of the same name. A field of the summary named like a key is
    `summary.NAME`. None: the run has no such key."""
    differing = differing_settings(runs)
    keys = list(dict.fromkeys([*IMPORTANT, *differing]))
    recorded = dict.fromkeys(name for run in runs for name in run.summary or {} if name not in {"status", *DERIVED})
    rows = []
    for i, run in enumerate(runs):
        row: dict[str, Any] = {"folder": str(run.folder), "status": run.status, "outcome": run.outcome}
        row |= {key: _setting(run, key, differing[key][i] if key in differing else "") for key in keys}
        summary = {f"summary.{name}" if name in row else name: run.final(name) for name in recorded}
        rows.append(row | summary | {name: field_value(run, name) for name in DERIVED})
    return rows


def mark_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row for each mark: the folder of its run, and its fields; None for a field that only other marks
    have."""
    names = dict.fromkeys(name for run in runs for mark in run.metrics for name in mark)
    marks = [(str(run.folder), mark) for run in runs for mark in run.metrics]
    return [{"folder": folder} | {name: mark.get(name) for name in names} for folder, mark in marks]


def _setting(run: Run, key: str, text: str) -> Any:
    """Return the value of a key; its text if only the name of a choice represents it."""
    if key.endswith(".name"):
        return run.chosen(key.removesuffix(".name")) or text or None
    value = run.setting(key)
    return (text or None) if value is None and text != "none" else value
