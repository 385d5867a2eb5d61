"""The summary table: one row per run, on the terminal, as CSV and as Markdown."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dsgd.record.reader import Run, number
from dsgd.report.labels import clock_text, run_labels, time_notes

NEVER = "never"  # the run has ended and did not reach its target
NOT_YET = "not yet"  # the run has no summary: it goes on, or was killed
NO_VALUE = "-"

TOP5 = "test top-5"  # a column only where a run has it: data of more than five classes
# heading: (field of the summary, factor from its unit to the heading's)
_MEASURES = {
    "samples": ("samples", 1.0),
    "epochs": ("epochs", 1.0),
    "test loss": ("test_loss", 1.0),
    "test accuracy": ("test_accuracy", 1.0),
    TOP5: ("test_top5", 1.0),
    "time to target (s)": ("time_to_target_s", 1.0),
    "time (s)": ("time_s", 1.0),
    "sent (GB)": ("bytes_sent_total", 1e-9),
    "idle mean (%)": ("idle_fraction_mean", 100.0),
    "idle max (%)": ("idle_fraction_max", 100.0),
}


def measures(runs: Sequence[Run]) -> dict[str, tuple[str, float]]:
    """The columns beside the run and its status: (field of the summary, factor from its unit to the heading's)."""
    known = any(not math.isnan(number(run.final("test_top5"))) for run in runs)
    return {heading: what for heading, what in _MEASURES.items() if known or heading != TOP5}


@dataclass(frozen=True)
class Row:
    """One run: its label among the others, and a value per heading (counts are int), or the text shown instead."""

    label: str
    run: Run
    values: dict[str, float | int | str]


def rows(runs: Sequence[Run]) -> list[Row]:
    """The table, soonest at its target first, then by total time; runs without a target last. Virtual and wall time
    have no common order: where both occur, those of one clock come together."""
    columns = measures(runs).items()
    found = [
        Row(name, run, {heading: _value(run, field, factor) for heading, (field, factor) in columns})
        for name, run in zip(run_labels(runs), runs, strict=True)
    ]
    return sorted(found, key=lambda row: (row.run.clock or "without", *_order(row)))


def print_table(runs: Sequence[Run], console: Console) -> None:
    """Print the summary table; a caption says what the times and the target are."""
    table = Table(box=None, pad_edge=False, header_style="bold", caption=caption(runs) or None, caption_justify="left")
    for heading in ("run", "status", *measures(runs)):
        left = heading in ("run", "status")
        table.add_column(heading, justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for row in rows(runs):
        style = "" if row.run.status in ("completed", "running") else "bold red"
        cells = [shown(value) for value in row.values.values()]
        table.add_row(Text(row.label), Text(row.run.status, style), *(Text(cell) for cell in cells))
    console.print(table)


def write_csv(runs: Sequence[Run], path: str | Path) -> None:
    """One line per run by the record's field names, numbers unrounded; empty if there is no value, `never` as shown."""
    columns = measures(runs)
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["run", "folder", "status", "clock", "target_accuracy", *(f for f, _ in columns.values())])
        for row in rows(runs):
            values = [
                row.run.time_to_target_s if field == "time_to_target_s" else number(row.run.final(field))
                for field, _ in columns.values()
            ]
            known = ["" if value is None or math.isnan(value) else _plain(value) for value in values]
            if row.values["time to target (s)"] == NEVER:
                known[list(columns).index("time to target (s)")] = NEVER
            target = "" if row.run.target is None else _plain(row.run.target)
            writer.writerow([row.label, str(row.run.folder), row.run.status, row.run.clock or "", target, *known])


def write_markdown(runs: Sequence[Run], path: str | Path) -> None:
    """The table as on the terminal."""
    columns = measures(runs)
    lines = ["| " + " | ".join(["run", "status", *columns]) + " |", "|---|---|" + "---:|" * len(columns)]
    for row in rows(runs):
        cells = [row.label.replace("|", "\\|"), row.run.status, *map(shown, row.values.values())]
        lines.append("| " + " | ".join(cells) + " |")
    if note := caption(runs):
        lines += ["", note]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def caption(runs: Sequence[Run]) -> str:
    """Which clock, which target, and whose time it is; empty for runs without any mark and target."""
    targets = sorted({run.target for run in runs if run.target is not None})
    parts = [f"times: {clock} time"] if (clock := clock_text(runs)) else []
    parts += [f"target: test accuracy {' or '.join(f'{target:g}' for target in targets)}"] if targets else []
    return "; ".join([*parts, *time_notes(runs)])


def shown(value: float | int | str) -> str:
    """Four significant digits, and no fewer than the whole number; counts and text as they are; `-` for NaN."""
    if isinstance(value, int | str):
        return str(value)
    if math.isnan(value):
        return NO_VALUE
    if value == 0:
        return "0"
    if 1000 <= abs(value) < 1e9:
        return f"{value:.0f}"
    return f"{value:#.4g}" if 1e-4 <= abs(value) < 1e9 else f"{value:.3e}"


def _value(run: Run, field: str, factor: float) -> float | int | str:
    if field == "samples":
        return samples if isinstance(samples := run.final(field), int) else number(samples)
    if field != "time_to_target_s":
        return number(run.final(field)) * factor
    if run.time_to_target_s is not None or run.target is None:
        return number(run.time_to_target_s)
    return NOT_YET if run.status == "running" else NEVER


def _order(row: Row) -> tuple[int, float, float]:
    to_target, time = row.values["time to target (s)"], row.values["time (s)"]
    seconds = time if isinstance(time, float) and not math.isnan(time) else math.inf
    if isinstance(to_target, str):
        return (1, 0.0, seconds)
    return (2, 0.0, seconds) if math.isnan(to_target) else (0, to_target, seconds)


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
