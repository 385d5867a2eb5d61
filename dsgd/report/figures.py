"""Draw every figure of `dsgd-plot`, from run records alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dsgd.record.reader import Run, number
from dsgd.report.curves import curves_figure, draw_curves, has_data, seeds_notes, x_axis
from dsgd.report.interval import estimate
from dsgd.report.labels import Series, series
from dsgd.report.look import WIDE, Look
from dsgd.report.prediction import Pair, median_step_s, pairs, step_s, why_no_pair
from dsgd.report.scaling import speed_up_figure, time_to_target_figure
from dsgd.report.sheet import RoomyLocator, name_bars, panels
from dsgd.report.style import NoData, annotate, finish, styled, write_figure

MOST_BARS = 12  # next to curves; the figure `idle` has them all
CLOSE = 0.1  # a prediction within this share of the measurement is in the band drawn about it


def figures(x_axes: Sequence[str]) -> dict[str, Callable[[Sequence[Run]], Figure]]:
    """Return the drawing functions by the name of the file without suffix. x_axes: names out of curves.X_FIELDS."""
    named: dict[str, Callable[[Sequence[Run]], Figure]] = {"overview": overview}
    for x in x_axes:
        named[f"loss_{x}"] = partial(curves_figure, x=x, fields=("train_loss", "test_loss"))
        named[f"accuracy_{x}"] = partial(curves_figure, x=x, fields=("test_accuracy",))
        named[f"error_{x}"] = partial(curves_figure, x=x, fields=("test_error",))
    return named | {
        "predicted": predicted_figure,
        "time_to_target": time_to_target_figure,
        "speed_up": speed_up_figure,
        "idle": idle_figure,
        "discrepancy": partial(curves_figure, x="time", fields=("discrepancy", "consensus_distance")),
    }


def draw(
    runs: Sequence[Run],
    out: Path,
    look: Look = WIDE,
    x_axes: Sequence[str] = ("time", "epochs", "bytes"),
    only: Sequence[str] = (),
) -> tuple[list[Path], dict[str, str]]:
    """Draw every figure for which the runs have data into an existing folder; if `only` is given, of these names.

    Returns the files written, and for each figure not drawn the reason. Raises OSError if a file cannot be written."""
    written: list[Path] = []
    missing: dict[str, str] = {}
    for name, make in figures(x_axes).items():
        if only and name not in only:
            continue
        try:
            written += write_figure(partial(make, runs), out / name, look)
        except NoData as reason:
            missing[name] = str(reason)
    return written, missing


def overview(runs: Sequence[Run]) -> Figure:
    """Draw accuracy against time, loss against time and idle share, with one legend; panels without data are omitted.

    Raises NoData if no panel has data."""
    gathered = styled(series(runs))
    axis = x_axis("time", runs)
    fields = [field for field in ("test_accuracy", "train_loss") if has_data(runs, axis.field, field)]
    idle = _has_idle(runs) and len(gathered) <= MOST_BARS
    if not fields and not idle:
        raise NoData("no run has test_accuracy, train_loss or idle_fraction_mean")
    figure, axes = panels(len(fields) + idle)
    handles = draw_curves(axes, gathered, axis, fields)
    if idle:
        _draw_idle(axes[-1], gathered)
    return finish(figure, runs, handles, seeds_notes(gathered)) if handles else annotate(figure, runs)


def idle_figure(runs: Sequence[Run]) -> Figure:
    """Draw the share of the time in which nodes neither compute nor update, a bar per series. Raises NoData."""
    if not _has_idle(runs):
        raise NoData("no run has idle_fraction_mean")
    gathered = styled(series(runs))
    figure, (axes,) = panels(1)
    _draw_idle(axes, gathered)
    return annotate(figure, runs, ["medians over seeds"] * any(len(group.runs) > 1 for group in gathered))


def predicted_figure(runs: Sequence[Run]) -> Figure:
    """Draw measured and predicted time of a step, with their ratio, a panel per cluster. Raises NoData."""
    compared = pairs(runs)
    if not compared:
        raise NoData(why_no_pair(runs))
    panel_pairs: dict[str, list[Pair]] = {}
    for pair in compared:
        panel_pairs.setdefault(pair.cluster, []).append(pair)
    figure, axes = panels(len(panel_pairs))
    several = len({pair.nodes for pair in compared}) > 1
    handles: dict[str, Artist] = {}
    for panel, (cluster, shown) in zip(axes, panel_pairs.items(), strict=True):
        handles = _draw_pairs(panel, shown)
        name_bars(panel, [pair.algorithm + (f", nodes={pair.nodes}" if several else "") for pair in shown])
        panel.set_title(cluster, fontsize="medium")
    figure.set_figheight(max(figure.get_figheight(), 0.5 * max(map(len, panel_pairs.values())) + 1.4))
    repeated = any(len(runs) > 1 for pair in compared for runs in (pair.measured, pair.predicted))
    notes = ["bars: medians; lines: smallest to largest of several runs"] * repeated
    return finish(figure, runs, handles, notes)


def _draw_pairs(axes: Axes, shown: Sequence[Pair]) -> dict[str, Artist]:
    """Draw two bars per pair, and the band in which a prediction is close; returns legend entries."""
    height, edge = 0.36, "#44546a"
    measured = predicted = band = Rectangle((0, 0), 0, 0)
    for row, pair in enumerate(shown):
        above, below = row - height / 2, row + height / 2
        measured_ms, predicted_ms = 1e3 * median_step_s(pair.measured), 1e3 * median_step_s(pair.predicted)
        left, look = (1 - CLOSE) * measured_ms, {"height": height, "edgecolor": edge, "linewidth": 0.8}
        (band,) = axes.barh(below, 2 * CLOSE * measured_ms, left=left, height=height, color="#f3d9a4")
        (measured,) = axes.barh(above, measured_ms, facecolor=edge, **look)
        (predicted,) = axes.barh(below, predicted_ms, facecolor="none", hatch="////", **look)
        right = (1 + CLOSE) * measured_ms
        for y, runs in ((above, pair.measured), (below, pair.predicted)):
            ends_ms = [1e3 * min(map(step_s, runs)), 1e3 * max(map(step_s, runs))]
            right = max(right, *ends_ms)
            if len(runs) > 1:
                axes.plot(ends_ms, [y, y], color="#000000", linewidth=1.2, marker="|", markersize=5)
        axes.text(right, row, f" {pair.ratio:.2f}", va="center", fontsize="small")
    axes.set_xlim(0, 1.2 * axes.dataLim.x1)
    axes.set_xlabel("time of a step (ms)\nnumbers: predicted / measured")
    return {"measured": measured, "predicted": predicted, f"measured ± {CLOSE:.0%}": band}


def _has_idle(runs: Sequence[Run]) -> bool:
    return not np.isnan(_percent(runs, "idle_fraction_mean"))


def _draw_idle(axes: Axes, gathered: Sequence[Series]) -> None:
    """Draw a bar for the mean over the nodes, over the hatched bar of the most idle one; medians over seeds."""
    drawn = [group for group in gathered if _has_idle(group.runs)]
    for row, group in enumerate(drawn):
        fill = group.style["color"]
        mean, largest = _percent(group.runs, "idle_fraction_mean"), _percent(group.runs, "idle_fraction_max")
        if not np.isnan(largest):
            axes.barh(row, largest, height=0.66, facecolor="white", edgecolor=fill, hatch="////", linewidth=0.8)
        axes.barh(row, mean, height=0.66, facecolor=fill, edgecolor=fill, linewidth=0.8)
        text = f" {mean:#.3g}" + ("" if np.isnan(largest) else f" / {largest:#.3g}")
        axes.text(np.nanmax([mean, largest]), row, text, va="center", fontsize="small")
    widest = axes.dataLim.x1
    axes.set_xlim(0, 1.3 * widest or 1.0)  # room for the numbers next to the bars
    axes.xaxis.set_major_locator(RoomyLocator(most=100))
    axes.set_xlabel("idle share of the time (%)\nsolid: mean of nodes\nhatched: most idle node")
    name_bars(axes, [group.label for group in drawn])


def _percent(runs: Sequence[Run], field: str) -> float:
    """Return the median of a share over the runs that have it, in per cent; NaN without such runs."""
    return 100 * estimate([number(run.final(field)) for run in runs]).median
