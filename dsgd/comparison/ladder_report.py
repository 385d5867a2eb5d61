"""Show a ladder: a table of the contenders on each rung, sentences on each two of them, and a figure of the laws."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dsgd.comparison.contenders import score
from dsgd.comparison.ladder import BEYOND, LADDER, Ladder, RungScores, outlook, samples_to_target
from dsgd.comparison.run_noise import late_slope
from dsgd.comparison.scaling_law import Law
from dsgd.host.terminal import table_console
from dsgd.record.safe_files import write_atomically
from dsgd.report.look import Look
from dsgd.report.setting import setting_text, whole_setting
from dsgd.report.sheet import label_decades, panels
from dsgd.report.style import finish, named_styles, write_figure
from dsgd.report.table_layout import Cell, ReportTable, exact

SCORES = "scores.csv"
GREY, POINTS = "#999999", 60
NOTES = (
    "geometric mean over seeds [95 % interval]; the law offset + scale size^power of all rungs but the largest",
    "miss: measured over forecast, less 1; grey, and without a sentence: the rungs follow no such law",
)


def report_ladder(ladder: Ladder, look: Look) -> None:
    """Print the table and the sentences, and write them and the figure into the folder."""
    table = ladder_table(ladder)
    table.write(ladder.folder / LADDER)
    write_figure(lambda: ladder_figure(ladder), ladder.folder / LADDER, look)
    sentences = [outlook(scores, ladder.sizes) for scores in ladder.ratios]
    write_atomically(ladder.folder / "verdict.txt", "".join(f"{line}\n" for line in sentences).encode())
    write_atomically(ladder.folder / SCORES, scores_text(ladder).encode())
    table.print(table_console())
    print("\n" + "\n".join(sentences) + f"\nfigure: {ladder.folder / LADDER}.png")


def scores_text(ladder: Ladder) -> str:
    """Return a line of CSV for each seed of each contender on each rung: score, samples to the target, fall of the loss
    in a late step, tuned values."""
    key = next(iter(ladder.rungs[0].settings))
    tuned = list(dict.fromkeys(name for contender in ladder.contenders[0] for name in contender.chosen))
    lines: list[list[Any]] = [["contender", key, "seed", "score", "samples", "slope", *tuned]]
    for label_of, of_one in zip(ladder.scores, zip(*ladder.contenders, strict=True), strict=True):
        for size, contender in zip(ladder.sizes, of_one, strict=True):
            values = [contender.chosen.get(name, "") for name in tuned]
            for run in contender.runs:
                measured = map(exact, (score(run), samples_to_target(run), late_slope(run)))
                lines.append([label_of.label, size, run.setting("seed"), *measured, *values])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def ladder_table(ladder: Ladder) -> ReportTable:
    """Return a row for each contender and for each ratio of two."""
    every, names = [*ladder.scores, *ladder.ratios], [rung.name for rung in ladder.rungs]
    rows = [_cells(scores, ladder.sizes) for scores in every]
    runs = [run for of_rung in ladder.contenders for contender in of_rung for run in contender.runs]
    caption = "\n".join([ladder.measure, *NOTES, setting_text(runs)])
    heads = ["contender", *names, "forecast", "miss", "R²"]
    csv_rows = ladder_numbers(every, names, ladder.sizes)
    return ReportTable(heads, frozenset({"contender", "miss"}), rows, csv_rows, caption, whole=whole_setting(runs))


def _cells(scores: RungScores, sizes: Sequence[float]) -> list[Cell]:
    means, law = [scores.mean(rung) for rung in range(len(sizes))], scores.law(sizes[:-1])
    if law is None:
        return [scores.label, *means, "none", "", ""]
    ahead = law.forecast(sizes[-1])
    miss = means[-1].median / ahead.median - 1
    shown_miss = "" if math.isnan(miss) else f"{miss:+.1%}"
    r2 = "" if law.numbers >= len(sizes) - 1 else round(law.r2, 3)  # as many rungs as numbers fit exactly
    return [scores.label, *means, "it bends" if law.bends else ahead, shown_miss, r2]


def ladder_numbers(every: Sequence[RungScores], names: Sequence[str], sizes: Sequence[float]) -> list[list[str]]:
    """Return the lines of `ladder.csv`: the mean on each rung, the forecast for the largest with its interval, and its
    miss; for scores without a law the means alone. names: names of the rungs."""
    lines = [["contender", *names, "forecast", "low", "high", "miss", "r2", "bends"]]
    for scores in every:
        means, law = [scores.mean(rung).median for rung in range(len(sizes))], scores.law(sizes[:-1])
        numbers, bends = [math.nan] * 5, ""
        if law is not None:
            ahead, bends = law.forecast(sizes[-1]), str(law.bends).lower()
            numbers = [ahead.median, ahead.low, ahead.high, means[-1] / ahead.median - 1, law.r2]
        lines.append([scores.label, *map(exact, (*means, *numbers)), bends])
    return lines


def ladder_figure(ladder: Ladder) -> Figure:
    """Draw scores and ratios over size: measured, forecast by the smaller rungs, and extrapolated beyond."""
    figure, (left, right) = panels(2)
    handles = _draw(left, ladder.scores, ladder.sizes)
    handles |= _draw(right, ladder.ratios, ladder.sizes)
    right.axhline(1.0, color="#777777", linewidth=1.0, zorder=1.5)
    key = next(iter(ladder.rungs[0].settings))
    for axes in (left, right):
        axes.set_xlabel(key)
    left.set_ylabel(f"{ladder.measure} (s)" if ladder.measure.startswith("time") else ladder.measure)
    right.set_ylabel("ratio")
    lines = ["line: law of all rungs but the largest; dashed: beyond them; wide bar: interval of the forecast"]
    lines.append("grey: the rungs follow no such law")
    runs = [run for of_rung in ladder.contenders for contender in of_rung for run in contender.runs]
    return finish(figure, runs, handles, lines)


def _draw(axes: Axes, each: list[RungScores], sizes: list[float]) -> dict[str, Line2D]:
    """Draw the points and the laws of some scores in a panel; returns legend entries."""
    handles = {}
    labels = [scores.label for scores in each]
    styles = named_styles([label.split()[0] for label in labels], labels, [0] * len(labels))
    for scores, style in zip(each, styles, strict=True):
        law = scores.law(sizes[:-1])
        color = GREY if law is None or law.bends else style["color"]
        means = [scores.mean(rung) for rung in range(len(sizes))]
        known = [(size, mean) for size, mean in zip(sizes, means, strict=True) if math.isfinite(mean.median)]
        ends = np.array([[mean.median - mean.low, mean.high - mean.median] for _, mean in known]).T
        at = [size for size, _ in known]
        middles = [mean.median for _, mean in known]
        points = axes.errorbar(at, middles, ends, color=color, marker=style["marker"], linestyle="none")
        handles[scores.label] = points.lines[0]
        if law is not None:
            _draw_law(axes, law, sizes, color)
    axes.set(xscale="log", yscale="log")
    label_decades(axes.xaxis, BEYOND * sizes[-1] / sizes[0])
    label_decades(axes.yaxis, axes.get_ylim()[1] / axes.get_ylim()[0])
    return handles


def _draw_law(axes: Axes, law: Law, sizes: list[float], color: str) -> None:
    within = np.geomspace(sizes[0], sizes[-2], POINTS)
    beyond = np.geomspace(sizes[-2], BEYOND * sizes[-1], POINTS)
    axes.plot(within, law.at(within), color=color)  # pyright: ignore[reportArgumentType]
    axes.plot(beyond, law.at(beyond), color=color, linestyle="--")  # pyright: ignore[reportArgumentType]
    ahead = law.forecast(sizes[-1])
    axes.vlines(sizes[-1], ahead.low, ahead.high, color=color, linewidth=4, alpha=0.3)
