"""Plot any field of runs against any key of their configurations, a line per algorithm, panels by another key.

Drawn are lines over a numeric key, marks with intervals over names, and curves over the marks of the runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from dsgd.record.reader import Run
from dsgd.report.curves import X_FIELDS, draw_estimates, draw_field, has_data, x_axis
from dsgd.report.fields import DERIVED, LABELS, estimate_of, field_names, field_value, is_rate, is_time
from dsgd.report.interval import PAIRED, Estimate, estimate, interval_note
from dsgd.report.labels import (
    Flat,
    Series,
    clock_text,
    did_you_mean,
    differing_keys,
    find_key,
    flatten,
    gather,
    in_order,
    labelled,
    series,
    time_notes,
)
from dsgd.report.scaling import named_base, speed_up
from dsgd.report.setting import setting_text, whole_setting
from dsgd.report.sheet import NOTE, bound_of, is_log, is_missed, panels, scale_log, wants_log, wrapped
from dsgd.report.style import NoData, finish, styled
from dsgd.report.table_layout import Cell, ReportTable, exact
from dsgd.report.units import assigned, quantity

_BAD = ("diverged", "failed", "collapsed")  # such a run is never the best


@dataclass(frozen=True)
class FieldPlot:
    """Hold the contents of one figure. y: its field. x: a key, or one of X_FIELDS. label: label of the vertical axis.

    series: the lines of all panels. panels: {value of the panels' key, empty for a single panel: its lines, each with
    runs and estimates by the value of x}. notes: notes on the choice of runs, on intervals, and on runs without a
    number. speed_up: the values are ratios, instead of the field itself."""

    y: str
    x: str
    label: str
    runs: list[Run]
    series: list[Series]
    panel_key: str
    panels: dict[str, list[tuple[Series, dict[str, Estimate]]]]
    notes: list[str]
    speed_up: bool

    @property
    def points(self) -> list[tuple[str, Estimate]]:
        """Return the points of all lines and panels: value of the key, estimate of the field."""
        return [point for lines in self.panels.values() for _, points in lines for point in points.items()]

    def title(self, value: str) -> str:
        """Return the title of a panel, like `nodes=8`; empty without a panel key."""
        return assigned(_short(self.panel_key), self.panel_key, value) if self.panel_key else ""


def field_plot(
    runs: Sequence[Run], y: str, x: str, lines: Sequence[str] = (), panels: str = "", best: str = "", base: str = ""
) -> FieldPlot:
    """Gather a field of runs by keys. x: a key or one of X_FIELDS. lines: keys; empty: all other keys that differ.

    best: a key; each configuration keeps its best value. base: the divisor of speed-ups, `algo=sync,nodes=1`. Raises
    ValueError for a field and keys that the runs do not have, and if runs of one point differ in more than the seed."""
    _check_field(runs, y)
    runs, notes, label_text = list(runs), list[str](), LABELS.get(y, y)
    x_key = "" if x in X_FIELDS else find_key(runs, x, "--x")
    line_keys = [find_key(runs, key, "--lines") for key in lines]
    panel_key = find_key(runs, panels, "--panels") if panels else ""
    if best:
        runs, note = best_over(runs, find_key(runs, best, "--best-over"), y)
        notes.append(note)
    value: Callable[[Sequence[Run]], Estimate] = partial(estimate_of, name=y)
    if base:
        if not x_key:
            raise ValueError(f"--base needs a key as --x, got {x}")
        reference = named_base(runs, base, y)
        value = partial(speed_up, reference, name=y)
        over = "over" if is_rate(y) else "speed-up over"
        label_text = f"{label_text.removesuffix(' (s)')}\n{over} {reference.label}"
        notes.append(f"ratio: {PAIRED}")
    lined = styled(_lines(runs, line_keys, [key for key in (x_key, panel_key) if key]))
    flats = {id(run): flat for run, flat in zip(runs, flatten(runs), strict=True)}
    all_panels: dict[str, list[tuple[Series, dict[str, Estimate]]]] = {}
    for title in in_order(flat[panel_key] for flat in flats.values()) if panel_key else [""]:
        shown = [
            replace(line, runs=[run for run in line.runs if not panel_key or flats[id(run)][panel_key] == title])
            for line in lined
        ]
        all_panels[title] = [(line, _points(line, x_key, flats, value)) for line in shown if line.runs]
    plot = FieldPlot(y, x_key or x, label_text, runs, lined, panel_key, all_panels, notes, bool(base))
    note = interval_note([point.count for _, point in plot.points])
    without = sum(value([run]).count == 0 for run in runs)
    notes += [note] * bool(note) + [f"{without} of {len(runs)} runs have no number for it"] * bool(without)
    if len({run.clock for run in runs} - {None}) > 1 and (y.endswith("_s") or x == "time"):
        notes.append(f"times: {clock_text(runs)} time")
    return plot


def _check_field(runs: Sequence[Run], name: str) -> None:
    """Raise ValueError, with near matches, unless some run has a number for a field."""
    present = field_names(runs)
    if name in present:
        return
    known = {*DERIVED, *(field for run in runs for field in run.summary or {})}
    if name in known:
        raise ValueError(f"--y {name}: no run has a number for it")
    raise ValueError(
        f"--y must be a field of the runs, got {name!r}{did_you_mean(get_close_matches(name, present, cutoff=0.75))}"
    )


def best_over(runs: Sequence[Run], key: str, field: str) -> tuple[list[Run], str]:
    """Keep, for each configuration, the value of a key with the best median of a field over seeds; the smallest of
    equally good ones. A diverged or failed run loses. Returns the runs, and a note on their choice.

    Raises ValueError for a field without a better direction."""
    sign = _better(field)
    flats = flatten(runs)
    groups: dict[frozenset[tuple[str, str]], dict[str, list[int]]] = {}
    for i, flat in enumerate(flats):
        others = frozenset((name, text) for name, text in flat.items() if name not in (key, "seed"))
        groups.setdefault(others, {}).setdefault(flat[key], []).append(i)
    kept: list[int] = []
    at_edge: list[str] = []
    for values in groups.values():
        scores = {text: estimate([_score(runs[i], field, sign) for i in members]) for text, members in values.items()}
        ordered = in_order(values)
        best = min(ordered, key=lambda text: scores[text].median if scores[text].count else math.inf)
        kept += values[best]
        if len(ordered) > 1 and best in (ordered[0], ordered[-1]):
            at_edge.append(f"{runs[values[best][0]].algorithm} {best}")
    texts = in_order(flat[key] for flat in flats)
    note = f"{key}: for each configuration the best of {', '.join(texts)} by {field}, on the seeds drawn here"
    edge = f"; at the edge of its values: {', '.join(dict.fromkeys(at_edge))}" if at_edge else ""
    return [runs[i] for i in sorted(kept)], note + edge


def field_table(plot: FieldPlot) -> ReportTable:
    """Return a row per point; in the CSV file median and interval are columns of their own."""
    panel_key = plot.title(next(iter(plot.panels))).partition("=")[0]
    heads = [head for head in (_short(plot.x), panel_key) if head]
    heading = plot.label.replace("\n", " ")
    rows: list[list[Cell]] = []
    csv_rows = [["line", plot.x, *[panel_key] * bool(panel_key), "median", "low", "high", "seeds"]]
    for panel, lines in plot.panels.items():
        where = [panel] if panel_key else []
        for line, points in lines:
            for x, value in points.items():
                rows.append([line.label, x, *where, value, value.count])
                numbers = [exact(number) for number in (value.median, value.low, value.high)]
                csv_rows.append([line.label, x, *where, *numbers, str(value.count)])
    caption = "\n".join([*plot.notes, *time_notes(plot.runs), setting_text(plot.runs)])
    headings, whole = ["run", *heads, heading, "seeds"], whole_setting(plot.runs)
    return ReportTable(headings, frozenset({"run", *heads}), rows, csv_rows, caption, len(heads) + 2, whole)


def _lines(runs: Sequence[Run], keys: Sequence[str], apart_from: Sequence[str]) -> list[Series]:
    """Gather the runs of a line: equal in the given keys, or in all differing keys except x and panels."""
    if not keys:
        return series(runs, apart_from=apart_from)
    flats = [{key: flat[key] for key in keys} for flat in flatten(runs)]
    return labelled(gather(zip(runs, flats, strict=True)))


def _points(
    line: Series, x_key: str, flats: dict[int, Flat], value: Callable[[Sequence[Run]], Estimate]
) -> dict[str, Estimate]:
    """Gather the runs of a line by the key. Raises ValueError if runs of one point differ in more than the seed."""
    by_x: dict[str, list[Run]] = {}
    for run in line.runs:
        by_x.setdefault(flats[id(run)].get(x_key, ""), []).append(run)
    for x, members in by_x.items():
        if differing := differing_keys([flats[id(run)] for run in members]):
            where, keys = f" at {_short(x_key)}={x}" * bool(x_key), ", ".join(differing)
            raise ValueError(
                f"runs of {line.label}{where} differ in {keys}: name it in --lines, --panels or --best-over"
            )
    return {x: value(by_x[x]) for x in in_order(by_x)}


def _short(key: str) -> str:
    """Return the last part of a key, or its group for a name."""
    return key.removesuffix(".name").rpartition(".")[2]


LOG_FROM = 8.0  # ratio of the largest to the smallest value of a key from which its axis is logarithmic


def field_figure(plot: FieldPlot) -> Figure:
    """Draw a plot, a panel for each value of its panel key. Raises NoData if there is nothing to draw."""
    if plot.x in X_FIELDS:
        return _curves(plot)
    medians = [value.median for _, value in plot.points if not is_missed(value)]
    if not np.isfinite(medians).any():
        raise NoData(f"no configuration has {plot.y} in the median over its seeds")
    figure, axes = panels(len(plot.panels))
    places = _places(axes, in_order(x for x, _ in plot.points), plot.x)
    limits = [bound.limit for _, value in plot.points if (bound := bound_of(value)) is not None]
    known = np.array([*(median for median in medians if math.isfinite(median)), *limits])
    by_default = True if plot.y.endswith("error") else None  # otherwise if they span a decade
    logarithmic = bool((known > 0).all()) and all(scale_log(ax, "y", known, by_default) for ax in axes)
    handles: dict[str, Line2D] = {}
    for panel_axes, (panel, lines) in zip(axes, plot.panels.items(), strict=True):
        placed = [(line, {places[x]: value for x, value in points.items()}) for line, points in lines]
        names = panel_axes.get_xlim() == (-0.5, len(places) - 0.5)
        handles |= draw_estimates(panel_axes, placed, "" if plot.speed_up else " s", names)
        panel_axes.set_ylabel("\n".join(wrapped(line, 30) for line in plot.label.split("\n")))
        panel_axes.set_title(plot.title(panel), fontsize="medium")
        if not logarithmic and plot.y.endswith(("_s", "_total", "_step", "_node")):
            panel_axes.set_ylim(bottom=0)
    if len(axes) > 1:
        ends = [ax.get_ylim() for ax in axes]
        for ax in axes:
            ax.set_ylim(min(bottom for bottom, _ in ends), max(top for _, top in ends))
    order = [line.label for line in plot.series]
    missed = {label: _never(plot, label) for label in order}
    named = {label + missed[label]: handles[label] for label in order if label in handles}
    return finish(figure, plot.runs, named, [*plot.notes, *[NOTE] * bool(limits)])


def _curves(plot: FieldPlot) -> Figure:
    axis = x_axis(plot.x, plot.runs)
    if not has_data(plot.runs, axis.field, plot.y):
        raise NoData(f"no run has {plot.y} against {axis.field} in its marks")
    figure, axes = panels(len(plot.panels))
    handles: dict[str, Line2D] = {}
    for panel_axes, (panel, lines) in zip(axes, plot.panels.items(), strict=True):
        handles |= draw_field(panel_axes, [line for line, _ in lines], axis, plot.y)
        panel_axes.set_title(plot.title(panel), fontsize="medium")
    return finish(figure, plot.runs, handles, plot.notes)


def _places(axes: Sequence[Axes], xs: Sequence[str], key: str) -> dict[str, float]:
    """Scale and label the horizontal axes for the values of a key; returns the position of each value."""
    unit = quantity(key, xs)
    try:
        places = {text: float(text) for text in xs}
    except ValueError:
        places = {text: float(i) for i, text in enumerate(xs)}
        numeric = False
    else:
        numeric = True
    values = sorted(places.values())
    logarithmic = numeric and values[0] > 0 and is_log("x", values, wants_log(values, LOG_FROM))
    for ax in axes:
        ax.set_xlabel(unit.label)
        if logarithmic:
            ax.set_xscale("log")
        ax.set_xticks(list(places.values()), [unit.text(text) if numeric else wrapped(text, 12) for text in places])
        ax.xaxis.set_minor_locator(NullLocator())
        if not numeric:
            ax.set_xlim(-0.5, len(xs) - 0.5)
            ax.grid(axis="x", visible=False)
    return places


def _never(plot: FieldPlot, label: str) -> str:
    """Return ` (not reached at 16, 32)` for a line with points at which most seeds missed the target; empty for other
    lines."""
    unit = quantity(plot.x, in_order(x for x, _ in plot.points))
    missed = [
        " ".join(part for part in (unit.text(x), unit.unit, plot.title(panel)) if part)
        for panel, lines in plot.panels.items()
        for line, points in lines
        for x, value in points.items()
        if line.label == label and is_missed(value)
    ]
    return f" (not reached at {', '.join(missed)})" if missed else ""


def _better(field: str) -> int:
    """Return 1 if less is better, -1 if more is. Raises ValueError for others."""
    if is_rate(field) or "accuracy" in field or field == "test_top5":
        return -1
    if is_time(field) or "loss" in field or "error" in field:
        return 1
    raise ValueError(f"--best-over needs a loss, an accuracy, a time or a rate as --y, got {field}")


def _score(run: Run, field: str, sign: int) -> float:
    value = sign * field_value(run, field)
    return math.inf if run.status in _BAD or math.isnan(value) else value
