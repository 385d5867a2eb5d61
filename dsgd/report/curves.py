"""Draw loss, accuracy and discrepancy against time, epochs, samples and bytes sent: in one panel, or a small one for
each curve, before the medians of the others."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dsgd.record.reader import Run, number
from dsgd.report.fields import LABELS, mark_value
from dsgd.report.interval import NOTHING, Estimate, estimate, interval_note
from dsgd.report.labels import Series, clock_text, series, status_note
from dsgd.report.sheet import Bound, bound_of, draw_limits, is_missed, panels, scale_log, wrapped
from dsgd.report.style import NoData, finish, plot_band, styled

X_FIELDS = {"time": "time_s", "epochs": "epoch", "bytes": "bytes_sent", "samples": "samples"}
BEYOND = 1e100  # of seconds, samples, bytes: matplotlib cannot divide an axis up to the largest numbers
MANY = 6  # curves from which their bands are not drawn in one panel
_BACKGROUND = {"color": "#c4c4c4", "linewidth": 0.6, "zorder": 1.5}
_BYTE_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))


@dataclass(frozen=True)
class XAxis:
    """A horizontal axis. field: field of a mark. label: label with the unit. unit: size of that unit in the field's
    unit."""

    field: str
    label: str
    unit: float = 1.0


@dataclass(frozen=True)
class Curve:
    """The curve of a series: x, median over its runs and its interval, [marks] each; all are finite."""

    x: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray


def x_axis(name: str, runs: Sequence[Run]) -> XAxis:
    """Return the axis `time`, `epochs`, `bytes` or `samples`, with the unit that suits the runs."""
    field = X_FIELDS[name]
    if name == "time":
        return XAxis(field, time_label(runs))
    if name == "bytes":
        sent = (number(mark.get(field)) for run in runs for mark in run.metrics)
        largest = max((value for value in sent if value > 0), default=0.0)
        unit, size = next(((u, size) for u, size in _BYTE_UNITS if largest >= size), _BYTE_UNITS[-1])
        return XAxis(field, "sent by all nodes" + (" (bytes)" if unit == "bytes" else f" ({unit})"), size)
    return XAxis(field, "epochs (passes over the training data)" if name == "epochs" else "samples")


def time_label(runs: Sequence[Run]) -> str:
    """Return `virtual time (s)` or `wall time (s)`; for both, the clock of each engine."""
    return f"{clock_text(runs)} time (s)".lstrip()


def points(run: Run, x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the marks of a run with finite values of both fields, and a possible x: x [marks], y [marks]."""
    pairs = np.array([(mark_value(mark, x), mark_value(mark, y)) for mark in run.metrics]).reshape(-1, 2)
    pairs = pairs[np.isfinite(pairs).all(axis=1) & (abs(pairs[:, 0]) < BEYOND)]
    return pairs[:, 0], pairs[:, 1]


def median_curve(runs: Sequence[Run], x: str, y: str) -> Curve | None:
    """Return median and interval over the runs, linearly interpolated, where all of them have values, or None.

    It ends where the first of the runs ends: a median of the remaining runs would jump."""
    drawn = [(xs, ys) for xs, ys in (points(run, x, y) for run in runs) if len(xs)]
    if not drawn:
        return None
    if len(drawn) == 1:
        xs, ys = drawn[0]
        return Curve(xs, ys, ys, ys)
    start, end = max(xs[0] for xs, _ in drawn), min(xs[-1] for xs, _ in drawn)
    grid = np.unique(np.concatenate([xs for xs, _ in drawn]))
    grid = grid[(grid >= start) & (grid <= end)]
    if not len(grid):
        return None
    values = np.array([np.interp(grid, xs, ys) for xs, ys in drawn])
    estimates = [estimate(list(column)) for column in values.T]
    return Curve(grid, *(np.array([getattr(value, part) for value in estimates]) for part in ("median", "low", "high")))


def has_data(runs: Sequence[Run], x: str, y: str) -> bool:
    """Check that some run has a mark with both fields."""
    return any(len(points(run, x, y)[0]) for run in runs)


def curves_figure(runs: Sequence[Run], x: str, fields: Sequence[str]) -> Figure:
    """Draw one panel per field against x (`time`, `epochs`, `bytes`, `samples`). Raises NoData if no run has any."""
    axis = x_axis(x, runs)
    present = [field for field in fields if has_data(runs, axis.field, field)]
    if not present:
        raise NoData(f"no run has {' or '.join(fields)} against {axis.field}")
    gathered = styled(series(runs))
    figure, axes = panels(len(present))
    return finish(figure, runs, draw_curves(axes, gathered, axis, present), seeds_notes(gathered))


def seeds_notes(gathered: Sequence[Series]) -> list[str]:
    """Return the note that explains lines and bands, if some series has several runs."""
    note = interval_note([len(group.runs) for group in gathered])
    if note and len(gathered) >= MANY:
        return [f"lines: medians over seeds, as far as all seeds go; no bands with {MANY} lines or more"]
    return [f"lines and bands: {note}; as far as all seeds go"] if note else []


def draw_curves(
    panels: Sequence[Axes], gathered: Sequence[Series], axis: XAxis, fields: Sequence[str]
) -> dict[str, Line2D]:
    """Draw each field of all series that have it in its own panel; returns the entries of a common legend."""
    handles: dict[str, Line2D] = {}
    for axes, field in zip(panels, fields, strict=False):  # a last panel may be for something else
        handles.update(draw_field(axes, gathered, axis, field))
    return handles


def draw_field(axes: Axes, gathered: Sequence[Series], axis: XAxis, field: str) -> dict[str, Line2D]:
    """Draw a field of all series that have it; returns the entries of a legend."""
    return draw_median_curves(axes, gathered, median_curves(gathered, axis, field), axis, field)


def median_curves(gathered: Sequence[Series], axis: XAxis, field: str) -> dict[int, Curve]:
    """Return the curves of the series that have a field, by their number."""
    return {i: curve for i, group in enumerate(gathered) if (curve := median_curve(group.runs, axis.field, field))}


def draw_median_curves(
    axes: Axes,
    gathered: Sequence[Series],
    curves: Mapping[int, Curve],
    axis: XAxis,
    field: str,
    focus: int | None = None,
) -> dict[str, Line2D]:
    """Draw curves; returns the entries of a legend. Bands of MANY curves would hide each other, and are omitted.

    curves: {number of the series: curve} of a field. focus: the main series of this panel; the others are a grey
    background."""
    diverged = {i for i in curves if any(run.outcome in ("diverged", "collapsed") for run in gathered[i].runs)}
    floor, ceiling = _scale_y(axes, curves, set() if "accuracy" in field else diverged, field)
    handles: dict[str, Line2D] = {}
    for i, curve in curves.items():
        visible = curve.median > floor
        x, median = curve.x[visible] / axis.unit, np.minimum(curve.median[visible], ceiling)
        if focus not in (None, i):
            axes.plot(x, median, **_BACKGROUND)
            continue
        start, apart = (0.02 * (i % 6), 0.14) if focus is None else (0.1, 0.4)
        every = (start, apart) if visible.any() else None  # sparse, and not all at the same places
        low, high = curve.low[visible], np.minimum(curve.high[visible], ceiling)
        if focus is None and len(curves) >= MANY:
            low, high = median, median
        name = gathered[i].label + status_note(gathered[i].runs)
        handles[name] = plot_band(axes, x, median, low, high, markevery=every, **gathered[i].style)
    if zeros := [gathered[i].label for i, curve in curves.items() if not (curve.median > floor).any()]:
        axes.set_title(textwrap.fill("0 throughout: " + "; ".join(zeros), 40), fontsize="small", loc="right")
    times = np.concatenate([curve.x for curve in curves.values()]) if curves else np.array([])
    scale_log(axes, "x", times, by_default=False)
    axes.set_xlabel(wrapped(axis.label, 28))
    axes.set_ylabel(LABELS.get(field, field), parse_math=True)
    targets = {(run.target_field, run.target) for group in gathered for run in group.runs}
    if len(targets) == 1:
        aimed, target = targets.pop()
        if aimed == field and target is not None:
            handles[f"target {target:g}"] = axes.axhline(target, color="#777777", linewidth=1.0, linestyle=(0, (2, 2)))
    return handles


def _scale_y(axes: Axes, curves: Mapping[int, Curve], diverged: set[int], field: str) -> tuple[float, float]:
    """Make the axis logarithmic for errors, and if values span a decade; not for accuracies, whose differences are near
    1, unless the user asks for it.

    Diverged runs leave the panel instead of flattening the others.

    Returns the limits of drawable values: above the first, and up to the second (matplotlib fails on 1e300 and on a
    logarithmic curve of zeros only)."""
    if not curves:
        return -np.inf, np.inf
    ranges = {i: np.concatenate([curve.low, curve.high]) for i, curve in curves.items()}
    shown = np.concatenate([values for i, values in ranges.items() if i not in diverged] or list(ranges.values()))
    by_default = True if field.endswith("error") else False if "accuracy" in field else None
    logarithmic = scale_log(axes, "y", shown, by_default)
    floor = 0.0 if logarithmic else -np.inf
    low, high = shown[shown > 0].min() if logarithmic else shown.min(), shown.max()
    if max(values.max() for values in ranges.values()) > high:
        room = 0.1 * (high - low) or abs(high) or 1.0
        axes.set_ylim(*((low / 1.5, 3 * high) if logarithmic else (low - room, high + 3 * room)))
        return floor, 100 * high if logarithmic else high + 100 * room
    return floor, np.inf


def draw_estimates(
    axes: Axes, lines: Sequence[tuple[Series, Mapping[float, Estimate]]], unit: str = "", named: bool = False
) -> dict[str, Line2D]:
    """Draw the estimates of each series by their positions on the horizontal axis; medians that missed the target are
    arrows. Returns the entries of a legend. A line has a gap at a missing number.

    unit: unit behind the number at an arrow. named: positions are names: no lines, marks with intervals side by
    side."""
    ends = [end for _, points in lines for value in points.values() for end in (value.median, value.high)]
    top = 1.3 * max((end for end in ends if math.isfinite(end)), default=1.0)  # of an interval that has no end
    handles: dict[str, Line2D] = {}
    limits: list[tuple[float, Bound, str]] = []
    for i, (line, points) in enumerate(lines):
        style = line.style
        aside = 0.5 * ((i + 0.5) / len(lines) - 0.5) if named else 0.0
        bounds = {x: bound for x, value in points.items() if (bound := bound_of(value)) is not None}
        limits += [(x + aside, bound, style["color"]) for x, bound in bounds.items()]
        shown = [NOTHING if is_missed(value) else value for value in points.values()]
        middle = np.array([value.median for value in shown])
        if np.isnan(middle).all():
            if bounds:
                handles[line.label] = Line2D([], [], markerfacecolor="white", **style)
            continue
        floor = np.nanmin(middle) / 3 if axes.get_yscale() == "log" else -math.inf
        low, high = [max(value.low, floor) for value in shown], [min(value.high, top) for value in shown]
        x = np.array(list(points)) + aside
        if named:
            look = {"color": style["color"], "marker": style["marker"], "ls": "", "capsize": 2}
            handles[line.label] = axes.errorbar(x, middle, [middle - low, high - middle], **look).lines[0]
        else:
            low, high = (middle, middle) if len(lines) >= MANY else (low, high)
            handles[line.label] = plot_band(axes, x, middle, low, high, **style)
    draw_limits(axes, limits, unit)
    return handles
