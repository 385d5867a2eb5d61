"""Show where one contender overtakes another along a key: figure and table.

The crossing of each seed lies between two values of the key. The interval is that of the median over seeds, its low end
from the lower and its high end from the upper of the two values, so that it holds whatever lies between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from dsgd.record.written import write_atomically
from dsgd.report.contest import score
from dsgd.report.contest_table import ratio_cell
from dsgd.report.fields import estimate_of
from dsgd.report.ratio import PAIRED
from dsgd.report.sentences import Overtaking, overtaking_sentence
from dsgd.report.setting import setting_text, whole_setting
from dsgd.report.sheet import label_decades, panels, wrapped
from dsgd.report.style import FORMATS, annotate, named_styles, write_figure
from dsgd.report.table_layout import Cell, ReportTable, exact
from dsgd.report.units import EXACT_DIGITS, quantity
from dsgd.safe_text import for_terminal, lines_for_terminal


def overtaking_figure(overtaking: Overtaking) -> Figure:
    """Draw the ratio of both times against the key, a dot for each seed and value, and the crossing's interval."""
    figure, (axes,) = panels(1)
    style = named_styles([overtaking.algos[0]], [""], [0])[0]
    axis = quantity(overtaking.key, [f"{value!r}" for value in overtaking.runs])
    dots = [
        (value / axis.size, above / other)
        for value, pairs in overtaking.runs.items()
        for pair in pairs
        for other, above in [[score(run, overtaking.goal) for run in pair]]
        if math.isfinite(above) and math.isfinite(other) and min(above, other) > 0
    ]
    if dots:
        axes.plot(*zip(*sorted(dots), strict=True), linestyle="", marker="o", color=style["color"], alpha=0.5)
    value, ends = overtaking.value, [size / axis.size for size in (min(overtaking.runs), max(overtaking.runs))]
    axes.axhline(1.0, color="#777777", linewidth=1.0)
    low, high = max(value.low / axis.size, ends[0]), min(value.high / axis.size, ends[1])
    axes.axvspan(low, high, color="#777777", alpha=0.22, linewidth=0)
    axes.axvline(value.median / axis.size, color="#000000", linewidth=1.0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    label_decades(axes.xaxis, ends[1] / ends[0])
    low, high = axes.get_ylim()
    label_decades(axes.yaxis, high / low)
    axes.set_xlabel(axis.label)
    axes.set_ylabel(f"time of {wrapped(overtaking.above, 28)}\nover that of {wrapped(overtaking.below, 24)}")
    return annotate(
        figure,
        [],
        ["dots: seeds; line and band: the crossing, median and interval over seeds", setting_text(overtaking.all_runs)],
    )


def write_overtaking(
    overtaking: Overtaking, stem: Path, width: str = "wide", formats: Sequence[str] = FORMATS
) -> ReportTable:
    """Write the sentence as `<stem>.txt`, the figure as `<stem>` in each format, and the table as `.csv`, `.md`, `.tex`
    and `.setting.json`; returns the table to print. Raises OSError for files that cannot be written."""
    sentence = lines_for_terminal(overtaking_sentence(overtaking))
    write_atomically(
        stem.with_suffix(".txt"), f"{sentence}\n{lines_for_terminal(setting_text(overtaking.all_runs))}\n".encode()
    )
    table = overtaking_table(overtaking, f"{sentence}\nratio: {overtaking.above} over {overtaking.below}, {PAIRED}")
    write_figure(lambda: overtaking_figure(overtaking), stem, width, formats)
    table.write(stem)
    return table


def overtaking_table(overtaking: Overtaking, caption: str = "") -> ReportTable:
    """Return a row for each value of the key that was tried, ascending.

    In the CSV file each pair of runs has a line."""
    names = (overtaking.below, overtaking.above)
    headings = [overtaking.key, "seeds", *(f"{name} (s)" for name in names), "ratio"]
    rows: list[list[Cell]] = []
    csv_rows: list[list[Any]] = [[overtaking.key, "seed", *(f"{name}_s" for name in ("below", "above"))]]
    for value, pairs in sorted(overtaking.runs.items()):
        sides = list(zip(*pairs, strict=True))
        times = [estimate_of(side, "time_to_target_s") for side in sides]
        text = f"{value:.{EXACT_DIGITS}g}"
        rows.append([text, len(pairs), *times, ratio_cell(overtaking.ratio(value))])
        for pair in pairs:
            csv_rows.append([text, pair[0].setting("seed"), *(exact(score(run, overtaking.goal)) for run in pair)])
    return ReportTable(headings, frozenset({overtaking.key}), rows, csv_rows, caption, whole=_whole(overtaking))


def _whole(overtaking: Overtaking) -> dict[str, Any]:
    value = overtaking.value
    crossing = {
        "key": overtaking.key,
        "below": for_terminal(overtaking.below),
        "above": for_terminal(overtaking.above),
        "median": value.median,
        "low": value.low or None,
        "high": value.high if math.isfinite(value.high) else None,
        "bounds": [[low or None, high if math.isfinite(high) else None] for low, high in overtaking.bounds],
    }
    return {"crossing": crossing} | whole_setting(overtaking.all_runs)
