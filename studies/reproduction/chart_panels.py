"""Draw the figures of papers: lines in panels, in the axes that the paper has, with the colours of all figures."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log, nan
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator

from dsgd.report.interval import Estimate
from dsgd.report.sheet import Bound, arrow, bound_of, draw_limits, is_missed, label_decades
from dsgd.report.sheet import panels as make_panels
from dsgd.report.style import add_legend, annotate, named_styles, plot_band
from studies.reproduction.verdict import exactly

FORMULA = "formula"  # as algorithm of a line: what is expected rather than measured
REFERENCE = {"color": "#777777", "linewidth": 1.0, "linestyle": (0, (2, 2))}
FEW = 8  # positions on a logarithmic axis that are named themselves
UNKNOWN = Estimate(nan, nan, nan, 0)
LETTER = 0.023  # of the axis, for a letter of their names
ALIKE = 3  # lines of one algorithm and no other, from which colours tell them apart as well
COLOURS = ("#b2182b", "#3c6fd8", "#1f8f5f", "#e69f1a", "#5b2d8e")  # of all such lines but the first
CENSORED = "target not reached: beyond"  # of the legend


@dataclass(frozen=True)
class ChartLine:
    """One line.

    label: of the legend, the same for the same thing in all panels. algorithm: decides the colour; FORMULA: dashed and
    grey, above the others. points: x, and y with its interval over seeds; on a logarithmic axis those with x > 0 are
    drawn. variant: decides the line style."""

    label: str
    algorithm: str
    points: Sequence[tuple[float, Estimate]]
    variant: int = 0
    markers: bool = True


def line_of(
    label: str, algorithm: str, points: Iterable[tuple[float, float]], variant: int = 0, markers: bool = True
) -> ChartLine:
    """Return a line through numbers that no seed changes."""
    return ChartLine(label, algorithm, [(x, exactly(y)) for x, y in points], variant, markers)


@dataclass(frozen=True)
class ChartPanel:
    """One pair of axes. x, y: their labels, with units. level: of a line across, as a threshold or target."""

    title: str
    x: str
    y: str
    lines: Sequence[ChartLine]
    log_x: bool = False
    log_y: bool = False
    level: float | None = None


def chart(*panels: ChartPanel, notes: Sequence[str] = ()) -> Figure:
    """Draw panels with one legend. notes: below it."""
    figure, all_axes = make_panels(len(panels))
    handles: dict[str, Artist] = {}
    has_limits = False
    styles = _styles([line for panel in panels for line in panel.lines if line.algorithm != FORMULA])
    for axes, panel in zip(all_axes, panels, strict=True):
        limits: list[tuple[float, Bound, str]] = []
        for line in panel.lines:
            points = [(x, y) for x, y in line.points if x > 0 or not panel.log_x]
            x = [position for position, _ in points]
            if line.algorithm == FORMULA:
                (handles[line.label],) = axes.plot(x, [y.median for _, y in points], **REFERENCE, zorder=3)
                continue
            style = styles[line.algorithm, line.label, line.variant]
            if not line.markers:
                style = {**style, "marker": ""}
            known = [UNKNOWN if is_missed(y) else y for _, y in points]  # a gap in the line
            ends = ([getattr(y, end) for y in known] for end in ("median", "low", "high"))
            values = (np.array(each, dtype=float) for each in ends)
            handles[line.label] = plot_band(axes, x, *values, **style)
            limits += [(x, bound, style["color"]) for x, y in points if (bound := bound_of(y)) is not None]
        draw_limits(axes, limits)
        has_limits = has_limits or bool(limits)
        _dress(axes, panel)
    if has_limits:
        handles[CENSORED] = Line2D([], [], color=REFERENCE["color"], **arrow(-90))
    return annotate(figure, [], notes, add_legend(figure, handles) if len(handles) > 1 else None)


def _styles(lines: Sequence[ChartLine]) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return the style of each line by algorithm, label and variant."""
    names = list(dict.fromkeys((line.algorithm, line.label, line.variant) for line in lines))
    if not names:
        return {}
    styles = dict(zip(names, named_styles(*zip(*names, strict=True)), strict=True))
    if len({algorithm for algorithm, _, _ in names}) == 1 and len(names) >= ALIKE:
        others = [colour for colour in COLOURS if colour != styles[names[0]]["color"]]
        for name, colour in zip(names[1:], itertools.cycle(others), strict=False):
            styles[name] = {**styles[name], "color": colour}
    return styles


def _dress(axes: Axes, panel: ChartPanel) -> None:
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    if panel.level is not None:
        axes.axhline(panel.level, **REFERENCE)
    if panel.log_y:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        label_decades(axes.yaxis, high / low)
    if panel.log_x:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        label_decades(axes.xaxis, high / low)
        places = sorted({x for line in panel.lines for x, _ in line.points if x > 0})
        if len(places) <= FEW:
            shown = _apart(places, low, high)
            axes.set_xticks(shown, [_named(x) for x in shown])
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_minor_locator(NullLocator())


def _apart(places: list[float], low: float, high: float) -> list[float]:
    """Return those of the places, ascending, whose labels do not overlap on a logarithmic axis."""
    shown: list[float] = []
    for x in places:
        letters = (len(_named(x)) + len(_named(shown[-1]))) / 2 + 1 if shown else 0
        if not shown or log(x / shown[-1]) >= LETTER * letters * log(high / low):
            shown.append(x)
    return shown


def _named(x: float) -> str:
    return f"{x:.3g}" if x < 1000 else f"{x:g}"
