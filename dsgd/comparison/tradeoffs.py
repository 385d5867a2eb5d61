"""Show the trade-offs of a comparison: time against cost, with the Pareto front, and the crossing of two contenders
along a key.

The crossing of each seed lies between two values of the key. The interval of the median over seeds takes its low end
from the lower and its high end from the upper values, so it holds for any crossings between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from dsgd.comparison.comparison_figure import contender_series
from dsgd.comparison.comparison_table import ratio_cell
from dsgd.comparison.comparison_verdict import Overtaking, in_sentence, overtaking_sentence, three_digits
from dsgd.comparison.contenders import Contender, Prices, aim_text, rank_contenders, score
from dsgd.record.safe_text import for_terminal, lines_for_terminal
from dsgd.report.curves import time_label
from dsgd.report.fields import estimate_of
from dsgd.report.interval import PAIRED, Estimate, interval_note
from dsgd.report.look import WIDE, Look
from dsgd.report.setting import setting_text, whole_setting
from dsgd.report.sheet import label_decades, panels, scale_log, wrapped
from dsgd.report.style import NoData, annotate, finish, named_styles, write_figure
from dsgd.report.table_layout import Cell, ReportTable, exact
from dsgd.report.units import EXACT_DIGITS, quantity


@dataclass(frozen=True)
class FrontPoint:
    """A contender with its time and cost to the target. beaten: another contender has a smaller median of one, and no
    larger one of the other."""

    contender: Contender
    time_s: Estimate
    cost: Estimate
    beaten: bool


def front_points(contenders: Sequence[Contender], prices: Prices) -> list[FrontPoint]:
    """Return the contenders that reach the target on most seeds, by their median time. Raises NoData without any."""
    times, costs = (
        {standing.name: standing.score for standing in rank_contenders(contenders, by).standings}
        for by in (None, prices)
    )
    medians = {name: (times[name].median, costs[name].median) for name in times}
    reached = {name: here for name, here in medians.items() if math.isfinite(sum(here))}
    if not reached:
        raise NoData("no contender with a known cost reached the target on most seeds")

    def beaten(here: tuple[float, float]) -> bool:
        return any(there != here and there[0] <= here[0] and there[1] <= here[1] for there in reached.values())

    points = [
        FrontPoint(contender, times[contender.label], costs[contender.label], beaten(reached[contender.label]))
        for contender in contenders
        if contender.label in reached
    ]
    return sorted(points, key=lambda point: (point.time_s.median, point.cost.median))


def front_sentence(points: Sequence[FrontPoint]) -> str:
    """Return `Time and cost: sync (11 s, 0.31) and gossip (14 s, 0.22) are beaten by no other in both.`"""
    names = [
        f"{in_sentence(point.contender.label)} ({three_digits(point.time_s.median)} s, "
        f"{three_digits(point.cost.median)})"
        for point in points
        if not point.beaten
    ]
    some = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"Time and cost: {some} {'is' if len(names) == 1 else 'are'} beaten by no other in both."


def front_figure(contenders: Sequence[Contender], prices: Prices) -> Figure:
    """Draw time against cost, median and interval of each contender, and a line through the front. Raises NoData."""
    points = front_points(contenders, prices)
    result = rank_contenders(contenders)
    styles = {line.label: line.style for line in contender_series(result)}
    figure, (axes,) = panels(1)
    handles: dict[str, Artist] = {}
    front = [point for point in points if not point.beaten]
    front_s, front_costs = [point.time_s.median for point in front], [point.cost.median for point in front]
    axes.step(front_s, front_costs, where="post", color="#777777", linewidth=1.0, zorder=1.5)
    for point in points:
        style = styles[point.contender.label]
        x, y = point.time_s, point.cost
        (handles[point.contender.label],) = axes.plot(
            [x.median], [y.median], color=style["color"], marker=style["marker"], markerfacecolor="white", linestyle=""
        )
        axes.plot([x.low, _end(x)], [y.median] * 2, color=style["color"], linewidth=1.0)
        axes.plot([x.median] * 2, [y.low, _end(y)], color=style["color"], linewidth=1.0)
    scale_log(axes, "x", [point.time_s.median for point in points])
    scale_log(axes, "y", [point.cost.median for point in points])
    axes.set_xlabel(f"{time_label(result.runs)}\nto {aim_text(result.aim)}")
    axes.set_ylabel(f"cost\n{prices.text}")
    note = interval_note([result.seeds])
    return finish(figure, result.runs, handles, [*[note] * bool(note), "grey line: the front, medians"])


def write_front(contenders: Sequence[Contender], prices: Prices, stem: Path, look: Look = WIDE) -> str:
    """Write the figure as `<stem>` in each format and the sentence as `<stem>.txt`; returns the sentence. Raises NoData
    before anything is written, OSError for files that cannot be written."""
    text = lines_for_terminal(front_sentence(front_points(contenders, prices)))
    write_figure(lambda: front_figure(contenders, prices), stem, look, text)
    return text


def _end(value: Estimate) -> float:
    return value.high if math.isfinite(value.high) else value.median


def overtaking_figure(overtaking: Overtaking) -> Figure:
    """Draw the ratio of both times against the key, a dot for each seed and value, and the crossing's interval."""
    figure, (axes,) = panels(1)
    style = named_styles([overtaking.algos[0]], [""], [0])[0]
    axis = quantity(overtaking.key, [f"{value!r}" for value in overtaking.runs])
    dots = [
        (value / axis.size, above / other)
        for value, pairs in overtaking.runs.items()
        for pair in pairs
        for other, above in [[score(run) for run in pair]]
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
    note = "dots: seeds; line and band: the crossing, median and interval over seeds"
    return annotate(figure, [], [note, setting_text(overtaking.all_runs)])


def write_overtaking(overtaking: Overtaking, stem: Path, look: Look = WIDE) -> ReportTable:
    """Write the sentence as `<stem>.txt`, the figure as `<stem>` in each format, and the table as `.csv`, `.md`, `.tex`
    and `.setting.json`; returns the table to print. Raises OSError for files that cannot be written."""
    sentence = lines_for_terminal(overtaking_sentence(overtaking))
    table = overtaking_table(overtaking, f"{sentence}\nratio: {overtaking.above} over {overtaking.below}, {PAIRED}")
    text = f"{sentence}\n{setting_text(overtaking.all_runs)}"
    write_figure(lambda: overtaking_figure(overtaking), stem, look, text)
    table.write(stem)
    return table


def overtaking_table(overtaking: Overtaking, caption: str = "") -> ReportTable:
    """Return a row for each value of the key that was tried, ascending.

    In the CSV file each pair of runs has a line."""
    names = (overtaking.below, overtaking.above)
    axis = quantity(overtaking.key, [f"{value!r}" for value in overtaking.runs])
    headings = [axis.label, "seeds", *(f"{name} (s)" for name in names), "ratio"]
    rows: list[list[Cell]] = []
    csv_rows: list[list[Any]] = [[overtaking.key, "seed", *(f"{name}_s" for name in ("below", "above"))]]
    for value, pairs in sorted(overtaking.runs.items()):
        sides = list(zip(*pairs, strict=True))
        times = [estimate_of(side, "time_to_target_s") for side in sides]
        text = f"{value:.{EXACT_DIGITS}g}"
        rows.append([axis.text(text), len(pairs), *times, ratio_cell(overtaking.ratio(value))])
        for pair in pairs:
            csv_rows.append([text, pair[0].setting("seed"), *(exact(score(run)) for run in pair)])
    return ReportTable(headings, frozenset({axis.label}), rows, csv_rows, caption, whole=_whole(overtaking))


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
