"""Draw where one contender overtakes another, and write all that a crossing shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from dsgd.record.written import write_atomically
from dsgd.report.contest import score
from dsgd.report.overtaking import Overtaking, overtaking_sentence, overtaking_table
from dsgd.report.ratio import PAIRED
from dsgd.report.setting import setting_text
from dsgd.report.sheet import label_decades, panels, wrapped
from dsgd.report.style import annotate, drawing, named_styles, save
from dsgd.report.table_layout import ReportTable
from dsgd.report.units import quantity
from dsgd.safe_text import lines_for_terminal


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
    axes.axvspan(
        max(value.low / axis.size, ends[0]),
        min(value.high / axis.size, ends[1]),
        color="#777777",
        alpha=0.22,
        linewidth=0,
    )
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
    overtaking: Overtaking, stem: Path, width: str = "wide", formats: Sequence[str] = ("png", "svg", "pdf")
) -> ReportTable:
    """Write the sentence as `<stem>.txt`, the figure as `<stem>` in each format, and the table as `.csv`, `.md`, `.tex`
    and `.setting.json`; returns the table to print. Raises OSError for files that cannot be written."""
    sentence = lines_for_terminal(overtaking_sentence(overtaking))
    write_atomically(
        stem.with_suffix(".txt"), f"{sentence}\n{lines_for_terminal(setting_text(overtaking.all_runs))}\n".encode()
    )
    table = overtaking_table(overtaking, f"{sentence}\nratio: {overtaking.above} over {overtaking.below}, {PAIRED}")
    with drawing(width):
        figure = overtaking_figure(overtaking)
        for kind in formats:
            save(figure, stem.with_suffix(f".{kind}"))
    table.write(stem)
    return table
