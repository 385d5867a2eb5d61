"""Lay tables out: for a terminal of any width, as CSV, Markdown and LaTeX.

On a narrow terminal whole columns are omitted, from the right, and named below the table; no number is ever cut."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from dsgd.record.safe_files import write_atomically
from dsgd.record.safe_text import for_csv, for_latex, for_markdown, for_terminal, lines_for_terminal
from dsgd.report.interval import Estimate

NEVER = "never"  # the run has ended and did not reach its target
NO_VALUE = "-"
SETTING = ".setting.json"  # ending of the file; summary.json would make a folder of tables look like a run
MISSED = (
    ">: at least so much, the target was not reached when the run ended; never: it diverged or collapsed; ?: unknown"
)
UNKNOWN = "?"  # an end of an interval that depends on seeds on which both missed the target
BAD = ("failed", "diverged", "collapsed", "interrupted")  # statuses in red
GAP = "  "
LATEX_LETTERS = 80  # of a line of a page of 5.5 inches, at 10 points
LATEX_GAP = 3  # letters between two columns
SHORTEST_NAME = 16  # characters that the first column always gets

Cell = float | int | str | Estimate


@dataclass(frozen=True)
class ReportTable:
    """A table to print and to write.

    headings: the most important columns first. texts: headings of columns with text; other columns have numbers. rows:
    one cell per heading. csv_rows: the heading and the lines of the CSV file. caption: text below the table, maybe
    empty. kept: number of first columns shown on any terminal. whole: further content of the JSON file, mainly the
    setting of the runs; None: no such file."""

    headings: list[str]
    texts: frozenset[str]
    rows: list[list[Cell]]
    csv_rows: list[list[Any]]
    caption: str
    kept: int = 2
    whole: dict[str, Any] | None = None

    @cached_property
    def cells(self) -> list[list[str]]:
        """Return the text of every cell."""
        return [[shown(value) for value in row] for row in self.rows]

    def print(self, console: Console, known: Collection[str] = ()) -> None:
        """Print the columns that fit the console, with the status of failed runs in red. known: caption lines printed
        before."""
        caption = "\n".join(line for line in self.caption.split("\n") if line not in known)
        safe = replace(self, headings=list(map(for_terminal, self.headings)), caption=lines_for_terminal(caption))
        rows = [[for_terminal(cell) if isinstance(cell, str) else cell for cell in row] for row in self.rows]
        replace(safe, texts=frozenset(map(for_terminal, self.texts)), rows=rows)._print(console)

    def _print(self, console: Console) -> None:
        widths = self._fitting(console.width)
        blocks = {i: textwrap.wrap(self.headings[i], width) for i, width in widths.items()}
        height = max(map(len, blocks.values()))
        self._print_line(console, widths, {i: [""] * (height - len(b)) + b for i, b in blocks.items()}, "bold")
        for row in self.cells:
            first = {0: textwrap.wrap(row[0], widths[0]) or [""]}
            self._print_line(console, widths, {i: [row[i]] for i in widths} | first)
        notes = self.caption.split("\n") if self.caption else []
        if left_out := [heading for i, heading in enumerate(self.headings) if i not in widths]:
            notes.append(f"no room at {console.width} characters: {', '.join(left_out)}")
        for line in (line for note in notes for line in textwrap.wrap(note, console.width)):
            console.print(Text(line, "italic"), soft_wrap=True)

    def write(self, stem: Path) -> list[Path]:
        """Write `<stem>.csv`, with unrounded numbers, all columns as `<stem>.md` and `<stem>.tex`, and the setting of
        the runs as `<stem>.setting.json`; return the paths."""
        written = [stem.with_suffix(suffix) for suffix in (".csv", ".md", ".tex")]
        file = io.StringIO(newline="")
        csv.writer(file, lineterminator="\n").writerows([for_csv(cell) for cell in row] for row in self.csv_rows)
        texts = [file.getvalue(), self._markdown(), self._latex()]
        if self.whole is not None:
            written.append(stem.with_suffix(SETTING))
            texts.append(json.dumps(self.whole, indent=1, allow_nan=False) + "\n")
        for path, text in zip(written, texts, strict=True):
            write_atomically(path, text.encode())
        return written

    def _fitting(self, width: int) -> dict[int, int]:
        """Return the columns that fit, with their widths. Names and headings may go over several lines."""
        longest = max([len(self.headings[0]), *(len(row[0]) for row in self.cells)])
        widths = {0: min(longest, max(SHORTEST_NAME, width // 3))}
        for i in range(1, len(self.headings)):
            if i >= self.kept and sum(widths.values()) + self._width(i) + len(GAP) * len(widths) > width:
                break
            widths[i] = self._width(i)
        spare = width - sum(widths.values()) - len(GAP) * (len(widths) - 1)
        for i in widths:
            missing = (len(self.headings[i]) if i else longest) - widths[i]
            if i == 0 or missing <= spare:
                more = max(0, min(spare, missing))
                widths[i], spare = widths[i] + more, spare - more
        return widths

    def _width(self, column: int) -> int:
        pieces = self.headings[column].split()
        return max(len(text) for text in [*pieces, *(row[column] for row in self.cells)])

    def _print_line(
        self, console: Console, widths: Mapping[int, int], blocks: Mapping[int, Sequence[str]], style: str = ""
    ) -> None:
        """Print the blocks of lines of all columns side by side."""
        for i in range(max(map(len, blocks.values()))):
            line = Text(style=style)
            for column, width in widths.items():
                text = blocks[column][i] if i < len(blocks[column]) else ""
                aligned = text.ljust(width) if self.headings[column] in self.texts else text.rjust(width)
                red = not style and any(status in text.replace(",", "").split() for status in BAD)
                line.append(aligned, "bold red" if red else "")
                line.append(GAP)
            line.rstrip()
            console.print(line, soft_wrap=True)

    def _markdown(self) -> str:
        rows = [self.headings, *self.cells]
        lines = ["| " + " | ".join(map(for_markdown, row)) + " |" for row in rows]
        lines.insert(1, "|" + "".join("---|" if heading in self.texts else "---:|" for heading in self.headings))
        notes = [for_markdown(line) for line in self.caption.split("\n")]
        lines += ["", "  \n".join(notes)] if self.caption else []
        return "\n".join(lines) + "\n"

    def _latex(self) -> str:
        """Return a tabular for booktabs; several, each with the names of the rows, if a page is not wide enough. To
        delete a column, also delete its letter."""
        names = list(range(max(1, self.kept - 1)))
        widths = [max(map(len, column)) + LATEX_GAP for column in zip(self.headings, *self.cells, strict=True)]
        parts = [list(names)]
        for i in range(len(names), len(self.headings)):
            if len(parts[-1]) > len(names) and sum(widths[j] for j in [*parts[-1], i]) > LATEX_LETTERS:
                parts.append(list(names))
            parts[-1].append(i)
        lines = ["% \\usepackage{booktabs}", *(f"% {for_terminal(line)}" for line in self.caption.split("\n") if line)]
        for part in parts:
            alignment = "".join("l" if self.headings[i] in self.texts else "r" for i in part)
            joined = (" & ".join(for_latex(row[i]) for i in part) for row in [self.headings, *self.cells])
            # a row that begins with a bracket or a star is no argument of the row before it
            head, *rows = ("{}" * row.startswith(("[", "*")) + row + r" \\" for row in joined)
            lines += [rf"\begin{{tabular}}{{@{{}}{alignment}@{{}}}}", r"\toprule", head, r"\midrule", *rows]
            lines += [r"\bottomrule", r"\end{tabular}", ""]
        return "\n".join(lines)


def shown(value: Cell) -> str:
    """Write four significant digits, and at least the whole number; counts and text unchanged; `-` for NaN, `never` for
    infinity; an estimate as `median [low, high]`, censored numbers as `> 40`."""
    if isinstance(value, Estimate):
        middle, low, high = (part_text(value, name) for name in ("median", "low", "high"))
        alone = (low == high != UNKNOWN) or math.isinf(value.low)
        return middle if alone else f"{middle} [{low}, {high}]"
    if isinstance(value, int | str):
        return str(value)
    if math.isnan(value):
        return NO_VALUE
    if math.isinf(value):
        return NEVER
    if value == 0:
        return "0"
    if 1000 <= abs(value) < 1e9:
        return f"{value:.0f}"
    return f"{value:#.4g}" if 1e-4 <= abs(value) < 1e9 else f"{value:.3e}"


def missed_note(rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Return MISSED if a cell of a table needs it."""
    texts = (shown(cell) for row in rows for cell in row if isinstance(cell, Estimate))
    return [MISSED] * any(re.search(f"[<>{UNKNOWN}]|{NEVER}", text) for text in texts)


def part_text(value: Estimate, name: str, text: Callable[[float], str] | None = None) -> str:
    """Write the median or one end of an estimate: `> 40` for a lower bound, `< 0.3` for an upper bound, UNKNOWN without
    either. text: writes a number; None: `shown`."""
    text = text or shown
    number: float = getattr(value, name)
    if math.isinf(number) and value.above is not None:
        bound: float = getattr(value.above, name)
        return UNKNOWN if bound == 0 else NEVER if math.isinf(bound) else f"> {text(bound)}"
    if number == 0 and value.below is not None:
        bound = getattr(value.below, name)
        return UNKNOWN if math.isinf(bound) else f"< {text(bound)}" if bound > 0 else NEVER
    return text(number)


def plain(value: Estimate) -> dict[str, float | int | bool | None]:
    """Return an estimate for JSON: null for an unknown or infinite number, and whether the median is censored, with its
    lower bound."""
    above = None if value.above is None or not math.isinf(value.median) else value.above.median
    numbers = {"median": value.median, "low": value.low, "high": value.high, "exceeds": above}
    known = {name: number if number is not None and math.isfinite(number) else None for name, number in numbers.items()}
    return {**known, "censored": math.isinf(value.median), "seeds": value.count}


def exact(value: float | int | str) -> str:
    """Write a value for CSV: all digits of a number, whole numbers without a point; empty for NaN, `inf` for a target
    that was not reached."""
    if isinstance(value, str):
        return value
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return "inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
