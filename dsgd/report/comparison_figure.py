"""Draw a comparison: lines over a numeric key, marks with intervals over names, curves over the marks of the runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from dsgd.report.censored import NOTE, Bound, bound_of, draw_limits, is_missed
from dsgd.report.comparison import OF_MARKS, Comparison, Panel, PlotPoint
from dsgd.report.curves import MANY, draw_field, has_data, x_axis
from dsgd.report.quantities import quantity
from dsgd.report.scales import is_log, label_decades, wants_log
from dsgd.report.selection import in_order
from dsgd.report.sheet import panels, wrapped
from dsgd.report.style import NoData, curve_styles, finish, plot_band

LOG_FROM = 8.0  # ratio of the largest to the smallest value of a key from which its axis is logarithmic


def comparison_figure(comparison: Comparison) -> Figure:
    """Draw a comparison, a panel for each value of its panel key. Raises NoData if there is nothing to draw."""
    styles = dict(zip([line.label for line in comparison.series], curve_styles(comparison.series), strict=True))
    if comparison.x in OF_MARKS:
        return _curves(comparison, styles)
    drawable = [p.value for panel in comparison.panels for points in panel.points for p in points if _drawable(p)]
    if not drawable:
        raise NoData(f"no configuration has {comparison.y} in the median over its seeds")
    figure, axes = panels(len(comparison.panels))
    xs = in_order(point.x for panel in comparison.panels for points in panel.points for point in points)
    places = _places(axes, xs, comparison.x)
    bounds = [bound_of(p.value) for panel in comparison.panels for points in panel.points for p in points]
    limits = [bound.limit for bound in bounds if bound is not None]
    logarithmic = _scale_y(axes, comparison, np.array([*(value.median for value in drawable), *limits]))
    handles: dict[str, Line2D] = {}
    for panel_axes, panel in zip(axes, comparison.panels, strict=True):
        handles |= _draw(panel_axes, comparison, panel, places, styles, logarithmic)
        panel_axes.set_ylabel("\n".join(wrapped(line, 30) for line in comparison.label.split("\n")))
        panel_axes.set_title(panel.title, fontsize="medium")
        if not logarithmic and comparison.y.endswith(("_s", "_total", "_step", "_node")):
            panel_axes.set_ylim(bottom=0)
    if len(axes) > 1:
        ends = [ax.get_ylim() for ax in axes]
        for ax in axes:
            ax.set_ylim(min(bottom for bottom, _ in ends), max(top for _, top in ends))
    order = [line.label for line in comparison.series]
    missed = {label: _never(comparison, label) for label in order}
    named = {label + missed[label]: handles[label] for label in order if label in handles}
    return finish(figure, comparison.runs, named, [*comparison.notes, *[NOTE] * bool(limits)])


def _curves(comparison: Comparison, styles: dict[str, dict[str, Any]]) -> Figure:
    axis = x_axis(comparison.x, comparison.runs)
    if not has_data(comparison.runs, axis.field, comparison.y):
        raise NoData(f"no run has {comparison.y} against {axis.field} in its marks")
    figure, axes = panels(len(comparison.panels))
    handles: dict[str, Line2D] = {}
    for panel_axes, panel in zip(axes, comparison.panels, strict=True):
        handles |= draw_field(panel_axes, panel.lines, axis, comparison.y, [styles[line.label] for line in panel.lines])
        panel_axes.set_title(panel.title, fontsize="medium")
    return finish(figure, comparison.runs, handles, comparison.notes)


def _places(axes: Sequence[Axes], xs: Sequence[str], key: str) -> dict[str, float]:
    """Scale and label the horizontal axes for the values of a key; returns where each value is."""
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


def _scale_y(axes: Sequence[Axes], comparison: Comparison, medians: np.ndarray) -> bool:
    """Make the axes of errors, and of what spans a decade, logarithmic; returns whether they are."""
    by_default = True if comparison.y.endswith("error") else None
    logarithmic = bool((medians > 0).all()) and is_log("y", medians, by_default)
    for ax in axes:
        if logarithmic:
            ax.set_yscale("log")
            label_decades(ax.yaxis, float(medians.max() / medians.min()))
    return logarithmic


def _draw(
    axes: Axes,
    comparison: Comparison,
    panel: Panel,
    places: dict[str, float],
    styles: dict[str, dict[str, Any]],
    logarithmic: bool,
) -> dict[str, Line2D]:
    """Draw the lines of a panel; returns their entries of the legend."""
    ends = [end for points in panel.points for point in points for end in (point.value.median, point.value.high)]
    top = 1.3 * max((end for end in ends if math.isfinite(end)), default=1.0)  # of an interval that has no end
    numeric = axes.get_xlim() != (-0.5, len(places) - 0.5)
    handles: dict[str, Line2D] = {}
    marks: list[tuple[float, Bound, str]] = []
    for i, (line, points) in enumerate(zip(panel.lines, panel.points, strict=True)):
        aside = 0.0 if numeric else 0.5 * ((i + 0.5) / len(panel.lines) - 0.5)
        limits = [
            (places[point.x] + aside, bound, styles[line.label]["color"])
            for point in points
            if (bound := bound_of(point.value)) is not None
        ]
        marks += limits
        shown = [point for point in points if _drawable(point) and not (logarithmic and point.value.median <= 0)]
        if not shown:
            if limits:
                handles[line.label] = Line2D([], [], markerfacecolor="white", **styles[line.label])
            continue
        middle = np.array([point.value.median for point in shown])
        floor = middle.min() / 3 if logarithmic else -math.inf
        low = np.array([max(point.value.low, floor) for point in shown])
        high = np.array([min(point.value.high, top) for point in shown])
        x = np.array([places[point.x] for point in shown])
        style = styles[line.label]
        if len(panel.lines) >= MANY and numeric:
            low, high = middle, middle
        if numeric:
            handles[line.label] = plot_band(axes, x, middle, low, high, **style)
        else:
            drawn = axes.errorbar(
                x + aside,
                middle,
                [middle - low, high - middle],
                color=style["color"],
                marker=style["marker"],
                ls="",
                capsize=2,
            )
            (handles[line.label], *_) = drawn.lines
    draw_limits(axes, marks, "" if comparison.speed_up else " s")
    return handles


def _drawable(point: PlotPoint) -> bool:
    return math.isfinite(point.value.median) and not is_missed(point.value)


def _never(comparison: Comparison, label: str) -> str:
    """Return ` (not reached at 16, 32)` for a line of which most seeds missed the target there; empty if none is."""
    unit = quantity(
        comparison.x, in_order(point.x for panel in comparison.panels for points in panel.points for point in points)
    )
    missed = [
        " ".join(part for part in (unit.text(point.x), unit.unit, panel.title) if part)
        for panel in comparison.panels
        for line, points in zip(panel.lines, panel.points, strict=True)
        for point in points
        if line.label == label and is_missed(point.value)
    ]
    return f" (not reached at {', '.join(missed)})" if missed else ""
