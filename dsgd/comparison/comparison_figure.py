"""Draw a comparison: the contenders' times to the target with intervals and seeds, and their curves; and write all
files."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from dsgd.comparison.comparison_table import comparison_table, ratio_text, tuning_notes
from dsgd.comparison.comparison_verdict import comparison_verdict
from dsgd.comparison.contenders import Comparison, Contender, Prices, Standing, aim_text, rank_contenders
from dsgd.comparison.run_noise import noise_line
from dsgd.record.reader import number
from dsgd.record.safe_files import write_atomically
from dsgd.record.safe_text import counted, for_terminal, lines_for_terminal
from dsgd.report.curves import MANY, draw_field, draw_median_curves, has_data, median_curves, time_label, x_axis
from dsgd.report.fields import unsmoothed_note
from dsgd.report.interval import interval_note
from dsgd.report.labels import status_note
from dsgd.report.look import WIDE, Look
from dsgd.report.setting import setting_text
from dsgd.report.sheet import (
    DECADE,
    Bound,
    draw_censored,
    empty_figure,
    is_log,
    label_decades,
    letter_inches,
    name_bars,
    panels,
    rows_height,
    wrapped,
)
from dsgd.report.sheet import NOTE as ARROWS
from dsgd.report.style import annotate, drawing, finish, named_styles, svg_text, write_figure

_TARGET: dict[str, Any] = {"color": "#777777", "linewidth": 1.0, "linestyle": (0, (2, 2))}
COLUMNS = 3  # of small panels
LINES = 14  # the height of a small panel in letters' widths
GREY = "grey: the medians of the others"
ROOM = 0.12  # share of the axis beyond the largest number that is drawn on it


def comparison_figure(comparison: Comparison) -> Figure:
    """Draw the scores, the first on top, and, if runs have marks, the test accuracy against time, or the loss if it is
    the target. The curves of MANY contenders have a small panel each."""
    field = _field(comparison)
    if field is None:
        figure, (scores,) = panels(1)
        _draw_scores(scores, comparison)
        return finish(figure, comparison.runs, _legend(comparison, {}), _notes(comparison))
    if len(comparison.standings) < MANY:
        figure, (scores, curves) = panels(2)
        _draw_scores(scores, comparison)
        handles = _legend(comparison, _draw_curves(curves, comparison, field))
        return finish(figure, comparison.runs, handles, _notes(comparison))
    names = [standing.name for standing in comparison.standings]
    left, right, figure = _beside_or_below(names, _small_height(len(names)))
    scores = left.subplots()
    _draw_scores(scores, comparison)
    small = _draw_small_curves(right, comparison, field)
    notes = [*_notes(comparison), _small_note(comparison)]
    return annotate(figure, comparison.runs, notes, lettered=[scores, small[0]])


def comparison_parts(comparison: Comparison) -> list[Figure]:
    """Return the two parts of the figure as separate figures, without the title, which the page has."""
    scores, (axes,) = panels(1)
    _draw_scores(axes, comparison)
    parts = [annotate(scores, [], [*_notes(comparison), setting_text(comparison.runs)])]
    field = _field(comparison)
    if field is not None and len(comparison.standings) < MANY:
        figure, (axes,) = panels(1)
        parts.append(finish(figure, [], _legend(comparison, _draw_curves(axes, comparison, field))))
    elif field is not None:
        figure = empty_figure(scores.get_figwidth(), _small_height(len(comparison.standings)))
        part = figure.add_subfigure(figure.add_gridspec()[0])  # the notes take the place of the figure's own label
        _draw_small_curves(part, comparison, field)
        parts.append(annotate(figure, [], [_small_note(comparison)], lettered=[]))
    return parts


def _field(comparison: Comparison) -> str | None:
    """Return the field of the curves; None if no mark has it."""
    fields = ["test_accuracy"] if _loss_aimed_at(comparison) is None else ["test_loss", "train_loss"]
    return next((field for field in fields if has_data(comparison.runs, "time_s", field)), None)


def _loss_aimed_at(comparison: Comparison) -> float | None:
    """Return the test loss of the target; None for an accuracy, and without a target."""
    aim = comparison.aim
    return aim.level if aim is not None and aim.field == "test_loss" else None


def _draw_curves(axes: Axes, comparison: Comparison, field: str) -> dict[str, Artist]:
    """Draw the curves of all contenders in one panel; returns the entries of a legend."""
    axis = x_axis("time", comparison.runs)
    handles: dict[str, Artist] = {**draw_field(axes, contender_series(comparison), axis, field)}
    if (level := _loss_aimed_at(comparison)) is not None:
        handles[f"target {level:g}"] = axes.axhline(level, **_TARGET)
    _scale_time(axes, comparison)
    return handles


def _draw_small_curves(figure: SubFigure, comparison: Comparison, field: str) -> list[Axes]:
    """Draw the curve of each contender in a small panel, in the order of the standings; returns the panels."""
    axis, gathered = x_axis("time", comparison.runs), contender_series(comparison)
    curves = median_curves(gathered, axis, field)
    rows = -(-len(curves) // COLUMNS)
    grid = list(figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False).flat)
    small, unused = grid[: len(curves)], grid[len(curves) :]
    for axes in unused:
        axes.remove()
    for axes in small[-COLUMNS:]:
        axes.tick_params(labelbottom=True)  # also above an empty panel
    columns = max(8, int(0.9 * figure.bbox.width / figure.dpi / COLUMNS / letter_inches()))
    for axes, i in zip(small, curves, strict=True):
        draw_median_curves(axes, gathered, curves, axis, field, focus=i)
        title = wrapped(gathered[i].label + status_note(gathered[i].runs), columns)
        axes.set_title(title, loc="left", fontsize="medium")
        axes.tick_params(labelsize="small")
    figure.supxlabel(small[0].get_xlabel().replace("\n", " "), fontsize="medium")
    figure.supylabel(small[0].get_ylabel(), fontsize="medium")
    for axes in small:
        axes.set(xlabel="", ylabel="")
        if (level := _loss_aimed_at(comparison)) is not None:
            axes.axhline(level, **_TARGET)
    _scale_time(small[0], comparison)
    return small


def _small_height(count: int) -> float:
    """Return the height of `count` small panels, inches."""
    return letter_inches() * (LINES * -(-count // COLUMNS) + 8)


def _beside_or_below(names: Sequence[str], below: float) -> tuple[SubFigure, SubFigure, Figure]:
    """Make a figure of two parts, side by side, on a narrow page one below the other. names: names of the rows in the
    first part. below: height of the second part, inches."""
    width = matplotlib.rcParams["figure.figsize"][0]
    narrow = width < 60 * letter_inches()
    above = rows_height(names, width if narrow else width / 2) + 5 * letter_inches()  # a title, two lines of a label
    height = above + below if narrow else max(above, below)
    figure = empty_figure(width, height)
    grid = figure.add_gridspec(2, 1, height_ratios=[above, below]) if narrow else figure.add_gridspec(1, 2)
    return figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1]), figure


def _small_note(comparison: Comparison) -> str:
    aim = comparison.aim
    return GREY if aim is None else f"{GREY}; dashed: the target, {aim.level:g}"


def _notes(comparison: Comparison) -> list[str]:
    """Return the explanation of dots, lines and arrows, and the tuned values."""
    note = interval_note([comparison.seeds])
    limited = any(_bound(comparison, standing) is not None for standing in comparison.standings)
    return [*[f"dots: seeds; lines and bands: {note}"] * bool(note), *[ARROWS] * limited, *tuning_notes(comparison)]


def contender_series(comparison: Comparison) -> list[Contender]:
    """Return the runs of each contender as the curves show them, in the order of the standings."""
    styled_standings = zip(comparison.standings, contender_styles(comparison), strict=True)
    return [replace(standing.contender, style=style) for standing, style in styled_standings]


def contender_styles(comparison: Comparison) -> list[dict[str, Any]]:
    """Return a style for each contender, in their order: the colour is its algorithm's, the line style belongs to its
    number of nodes, or if all have the same, to its options."""
    contenders = [standing.contender for standing in comparison.standings]
    algorithms, options = [contender.algorithm for contender in contenders], list(map(_options, contenders))
    lines = [contender.nodes for contender in contenders]
    if len({*lines}) == 1:
        pairs = sorted({*zip(algorithms, options, strict=True)})
        owners = [owner for owner, _ in pairs]
        lines = [pairs.index(pair) - owners.index(pair[0]) for pair in zip(algorithms, options, strict=True)]
    return named_styles(algorithms, options, lines)


def _options(contender: Contender) -> str:
    """Return the name without the number of nodes."""
    return contender.label.removesuffix(_nodes(contender.nodes)) or contender.label


def _nodes(count: int) -> str:
    return f", {counted(count, 'node')}"


def _legend(comparison: Comparison, handles: dict[str, Artist]) -> dict[str, Artist]:
    """Return the entries of the legend: if contenders are a grid of options and node counts, one for each option and
    each node count instead of one for each contender."""
    contenders, styles = [standing.contender for standing in comparison.standings], contender_styles(comparison)
    if not all(contender.label.endswith(_nodes(contender.nodes)) for contender in contenders):
        return handles
    entries: dict[str, Artist] = {
        _options(contender): Line2D([], [], color=style["color"], marker=style["marker"], markerfacecolor="white")
        for contender, style in zip(contenders, styles, strict=True)
    }
    by_nodes = {contender.nodes: style["linestyle"] for contender, style in zip(contenders, styles, strict=True)}
    entries |= {_nodes(n)[2:]: Line2D([], [], color="#555555", linestyle=by_nodes[n]) for n in sorted(by_nodes)}
    return entries | {name: handle for name, handle in handles.items() if name.startswith("target ")}


def _draw_scores(axes: Axes, comparison: Comparison) -> None:
    """Draw a row per contender: median, interval, seeds. A contender that missed the goal has an arrow at the limit."""
    scores = _reached(comparison)
    limits = [bound.limit for standing in comparison.standings if (bound := _bound(comparison, standing)) is not None]
    largest = max([*scores, *limits], default=1.0)
    smallest = min((value for value in scores if value > 0), default=largest)
    if _logarithmic(comparison):
        edge = largest * (largest / smallest) ** ROOM
        axes.set_xscale("log")
        axes.set_xlim(smallest * (smallest / largest) ** ROOM, edge)
        label_decades(axes.xaxis, largest / smallest)
    else:
        start = min([0.0, *scores])  # a loss may be negative
        edge = largest + ROOM * (largest - start or 1.0)
        axes.set_xlim(start, edge)
    for row, (standing, style) in enumerate(zip(comparison.standings, contender_styles(comparison), strict=True)):
        bound = _bound(comparison, standing)
        _draw_row(axes, row, standing, style, edge if bound is None else bound.limit)
        if standing.missed:
            text = _missed(standing, bound, comparison.unit)
            at_edge: dict[str, Any] = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
            axes.annotate(text, (1, row), (10, 0), color=style["color"], fontsize="small", va="center", **at_edge)
    name_bars(axes, [standing.name.replace(" node", "\N{NO-BREAK SPACE}node") for standing in comparison.standings])
    label = time_label(comparison.runs) if comparison.prices is None else f"cost ({comparison.prices.text})"
    goal = aim_text(comparison.aim)
    axes.set_xlabel(goal if comparison.aim is None else f"{label}\nto {goal}")


def _draw_row(axes: Axes, row: int, standing: Standing, style: dict[str, Any], limit: float) -> None:
    """Draw seeds, interval and median. limit: position of seeds that missed the target."""
    colour, score = style["color"], standing.score
    seeds = [value for value in standing.scores if math.isfinite(value)]
    if len(standing.scores) > 1:
        axes.plot(seeds, [row] * len(seeds), color=colour, marker="o", linestyle="", alpha=0.3, markersize=3)
    if score.low < score.high and math.isfinite(score.low):
        axes.plot([score.low, min(score.high, limit)], [row, row], color=colour, linestyle=style["linestyle"])
    if standing.missed:
        draw_censored(axes, limit, row, color=colour)
    if math.isfinite(score.median):
        axes.plot([score.median], [row], color=colour, marker=style["marker"], markerfacecolor="white", linestyle="")


def _bound(comparison: Comparison, standing: Standing) -> Bound | None:
    """Return the lower bound of seeds that missed the target; None without such seeds, and if unknown."""
    missed = [run for run, score in zip(standing.runs, standing.scores, strict=True) if math.isinf(score)]
    ends = [end for run in missed if math.isfinite(end := comparison.end(run))]
    return Bound(min(ends), ">") if ends else None


def _missed(standing: Standing, bound: Bound | None, unit: str) -> str:
    """Return `> 40 s`, `2 of 5 > 40 s`, `never (diverged)`."""
    some = f"{standing.missed} of {len(standing.scores)}" if standing.missed < len(standing.scores) else ""
    text = "never" if bound is None else bound.text(unit)
    return wrapped(f"{some} {text}".strip() + status_note(standing.runs), 18)


def _reached(comparison: Comparison) -> list[float]:
    """Return the scores of all seeds that reached the target."""
    return [value for standing in comparison.standings for value in standing.scores if math.isfinite(value)]


def _logarithmic(comparison: Comparison) -> bool:
    scores = _reached(comparison)
    return bool(scores) and min(scores) > 0 and is_log("x", scores)


def _scale_time(axes: Axes, comparison: Comparison) -> None:
    """Make the time axis logarithmic if the axis of scores is, from a little before the first reached target."""
    if comparison.aim is None or comparison.prices is not None or not _logarithmic(comparison):
        return
    drawn = np.array([number(mark.get("time_s")) for run in comparison.runs for mark in run.metrics])
    start, end = max(float(drawn[drawn > 0].min()), min(_reached(comparison)) / DECADE), float(np.nanmax(drawn))
    axes.set_xscale("log")
    axes.set_xlim(start, end)
    label_decades(axes.xaxis, end / start)


def write_comparison(
    contenders: Sequence[Contender], out: Path, prices: Prices | None = None, look: Look = WIDE, by_cost: bool = False
) -> str:
    """Write `contest.csv`, `.md`, `.tex` and `.setting.json`, the figure `contest` in each format, and `verdict.txt`
    into an existing folder. prices: prices of a cluster. by_cost: compare costs.

    Returns the text of verdict.txt. Raises ValueError for contenders that cannot be compared, and OSError."""
    result = rank_contenders(_with_safe_names(contenders), prices if by_cost else None)
    text = comparison_verdict(result)
    ratios = [f"times: {ratio_text(result)} [interval]"] * (len(result.standings) > 1)
    lines = [
        text,
        noise_line(result),
        unsmoothed_note(result.runs),
        *ratios,
        setting_text(result.runs),
        *tuning_notes(result),
    ]
    text = lines_for_terminal("\n".join(line for line in lines if line))
    write_atomically(out / "verdict.txt", f"{text}\n".encode())
    comparison_table(result, prices).write(out / "contest")
    write_figure(lambda: comparison_figure(result), out / "contest", look)
    return text


def page_figures(
    contenders: Sequence[Contender], log: Collection[str] | None = None, prices: Prices | None = None
) -> list[str]:
    """Return the parts of the figure as SVG documents for a page, of a size whose letters can be read on any screen.

    prices: prices of compared costs; None: compare times."""
    with drawing("screen", log):
        return [svg_text(figure) for figure in comparison_parts(rank_contenders(_with_safe_names(contenders), prices))]


def _with_safe_names(contenders: Sequence[Contender]) -> list[Contender]:
    return [replace(contender, label=for_terminal(contender.label)) for contender in contenders]
