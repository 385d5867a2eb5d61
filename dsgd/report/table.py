"""Write tables on the terminal, as CSV and as Markdown; make the summary table, with one row per run."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dsgd.record.reader import Run, number
from dsgd.report.labels import clock_text, run_labels, target_text, time_notes

NEVER = "never"  # the run has ended and did not reach its target
NOT_YET = "not yet"  # the run has no summary: it goes on, or was killed
NO_VALUE = "-"
BAD = ("failed", "diverged", "collapsed", "interrupted")  # statuses in red

# heading: (field of the summary, factor from its unit to the heading's)
_COLUMNS: dict[str, tuple[str, float]] = {
    "samples": ("samples", 1),
    "epochs": ("epochs", 1),
    "test loss": ("test_loss", 1),
    "test accuracy": ("test_accuracy", 1),
    "test top-5": ("test_top5", 1),
    "time to target (s)": ("time_to_target_s", 1),
    "time (s)": ("time_s", 1),
    "sent (GB)": ("bytes_sent_total", 1e-9),
    "idle mean (%)": ("idle_fraction_mean", 100.0),
    "idle max (%)": ("idle_fraction_max", 100.0),
}


@dataclass(frozen=True)
class ReportTable:
    """A table to print and to write.

    headings: of which the first `texts` are above text, the others above numbers. rows: one value per heading.
    csv_rows: the heading and the lines of the CSV file. caption: below the table, maybe empty."""

    headings: list[str]
    texts: int
    rows: list[list[float | int | str]]
    csv_rows: list[list[Any]]
    caption: str

    def print(self, console: Console) -> None:
        """Print the table, with the status of runs that went wrong in red."""
        table = Table(
            box=None, pad_edge=False, header_style="bold", caption=self.caption or None, caption_justify="left"
        )
        for i, heading in enumerate(self.headings):
            left = i < self.texts
            table.add_column(heading, justify="left" if left else "right", overflow="fold", no_wrap=not left)
        for row in self.rows:
            table.add_row(*(Text(shown(value), "bold red" if value in BAD else "") for value in row))
        console.print(table)

    def write(self, stem: Path) -> list[Path]:
        """Write `<stem>.csv`, with unrounded numbers, and `<stem>.md`, as on the terminal; returns both paths."""
        written = [stem.with_suffix(".csv"), stem.with_suffix(".md")]
        with written[0].open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(self.csv_rows)
        cells = [self.headings, *([shown(value).replace("|", "\\|") for value in row] for row in self.rows)]
        lines = ["| " + " | ".join(row) + " |" for row in cells]
        lines.insert(1, "|" + "---|" * self.texts + "---:|" * (len(self.headings) - self.texts))
        lines += ["", self.caption] if self.caption else []
        written[1].write_text("\n".join(lines) + "\n", encoding="utf-8")
        return written


def summary_table(runs: Sequence[Run]) -> ReportTable:
    """Return the table of the runs, in the order of `by_time`; the caption says what the times and the target are.

    In the CSV file the columns have the record's field names; a field without value is empty."""
    top5 = any(not math.isnan(number(run.final("test_top5"))) for run in runs)  # data of more than five classes
    columns = {heading: what for heading, what in _COLUMNS.items() if top5 or heading != "test top-5"}
    rows: list[list[float | int | str]] = []
    fields = [field for field, _ in columns.values()]
    csv_rows: list[list[Any]] = [["run", "folder", "status", "clock", "target_accuracy", *fields]]
    for name, run in by_time(runs):
        rows.append([name, run.outcome, *(_value(run, field, factor) for field, factor in columns.values())])
        described = [name, str(run.folder), run.outcome, run.clock or "", _exact(number(run.target))]
        csv_rows.append([*described, *(_exact(_value(run, field)) for field in fields)])
    return ReportTable(["run", "status", *columns], 2, rows, csv_rows, caption(runs))


def by_time(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    """Label the runs and sort them: soonest at its target first, then by total time; runs without a target last.

    Virtual and wall time have no common order: where both occur, those of one clock come together."""
    labelled = zip(run_labels(runs), runs, strict=True)
    return sorted(labelled, key=lambda pair: (pair[1].clock or "without", *_order(pair[1])))


def caption(runs: Sequence[Run]) -> str:
    """Say which clock, which target, and whose time it is; empty for runs without any mark and target."""
    parts = [f"times: {clock} time"] if (clock := clock_text(runs)) else []
    parts += [f"target: test accuracy {target}"] if (target := target_text(runs)) else []
    return "; ".join([*parts, *time_notes(runs)])


def shown(value: float | int | str) -> str:
    """Write four significant digits, and no fewer than the whole number; counts and text as they are; `-` for NaN."""
    if isinstance(value, int | str):
        return str(value)
    if math.isnan(value):
        return NO_VALUE
    if value == 0:
        return "0"
    if 1000 <= abs(value) < 1e9:
        return f"{value:.0f}"
    return f"{value:#.4g}" if 1e-4 <= abs(value) < 1e9 else f"{value:.3e}"


def _value(run: Run, field: str, factor: float = 1) -> float | int | str:
    if field == "samples":
        return samples if isinstance(samples := run.final(field), int) else number(samples)
    if field != "time_to_target_s":
        return number(run.final(field)) * factor
    if run.time_to_target_s is not None or run.target is None:
        return number(run.time_to_target_s)
    return NOT_YET if run.status == "running" else NEVER


def _order(run: Run) -> tuple[int, float, float]:
    to_target, time_s = number(run.time_to_target_s), number(run.final("time_s"))
    time_s = math.inf if math.isnan(time_s) else time_s
    return (2 if run.target is None else 1, 0.0, time_s) if math.isnan(to_target) else (0, to_target, time_s)


def _exact(value: float | int | str) -> str:
    """Write a value for CSV: all digits of a number, whole numbers without a point; empty for NaN and `not yet`."""
    if isinstance(value, str):
        return "" if value == NOT_YET else value
    if math.isnan(value):
        return ""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
