"""Draw a contest: who gets to the target when, with intervals and seeds, beside the curves that led there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dsgd.record.reader import number
from dsgd.report.censored import bound_of
from dsgd.report.contest import Contender, Contest, Standing
from dsgd.report.contest_table import tuning_notes
from dsgd.report.crossing import end_s
from dsgd.report.curves import draw_field, has_data, time_label, x_axis
from dsgd.report.interval import interval_note
from dsgd.report.labels import Series, status_note
from dsgd.report.style import finish, label_decades, name_bars, named_styles, panels, wrapped

LOG_FROM = 10.0  # ratio of the latest to the soonest from which the axes of time are logarithmic
OPEN: dict[str, Any] = {"marker": ">", "markerfacecolor": "none", "linestyle": "", "clip_on": False}  # censored
ROOM = 0.12  # share of the axis beyond the largest number that is drawn on it


def contest_figure(found: Contest) -> Figure:
    """Draw the scores, the first on top, and, where there are marks, the test accuracy against time; the loss where
    that is the target."""
    styles, logarithmic = contender_styles(found), _logarithmic(found)
    fields = ["test_loss", "train_loss"] if found.goal.of == "loss" else ["test_accuracy"]
    field = next((field for field in fields if has_data(found.runs, "time_s", field)), None)
    figure, axes = panels(1 if field is None else 2)
    _draw_scores(axes[0], found, styles, logarithmic)
    handles: dict[str, Artist] = {}
    if field is not None:
        curves = [Series(one.name, list(one.contender.runs)) for one in found.standings]
        handles |= draw_field(axes[1], curves, x_axis("time", found.runs), field, styles)
        if found.goal.of == "loss" and (level := found.goal.level) is not None:
            handles[f"target {level:g}"] = axes[1].axhline(level, color="#777777", linewidth=1.0, linestyle=(0, (2, 2)))
        if logarithmic and found.goal.level is not None:
            _log_time(axes[1], found)
    note = interval_note([found.seeds])
    handles = _legend(found, styles, handles)
    notes = [f"dots: seeds; lines and bands: {note}"] if note else []
    return finish(figure, found.runs, handles, [*notes, *tuning_notes(found)])


def contender_styles(found: Contest) -> list[dict[str, Any]]:
    """Return a style for each contender, in their order: the colour is its algorithm's, the line style belongs to its
    number of nodes, and where all have the same to its options."""
    contenders = [one.contender for one in found.standings]
    algorithms, options = [one.algo for one in contenders], [_options(one) for one in contenders]
    lines = [one.nodes for one in contenders]
    if len({*lines}) == 1:
        pairs = sorted({*zip(algorithms, options, strict=True)})
        owners = [owner for owner, _ in pairs]
        lines = [pairs.index(pair) - owners.index(pair[0]) for pair in zip(algorithms, options, strict=True)]
    return named_styles(algorithms, options, lines)


def _options(one: Contender) -> str:
    """Return the name without the number of nodes."""
    return one.name.removesuffix(_nodes(one.nodes)) or one.name


def _nodes(count: int) -> str:
    return f", {count} node{'s' * (count != 1)}"


def _legend(found: Contest, styles: Sequence[dict[str, Any]], handles: dict[str, Artist]) -> dict[str, Artist]:
    """Return the entries of the legend: of contenders that are so many options on so many nodes, one for each of either
    instead of one for each contender."""
    contenders = [one.contender for one in found.standings]
    if not all(one.name.endswith(_nodes(one.nodes)) for one in contenders):
        return handles
    entries: dict[str, Artist] = {
        _options(one): Line2D([], [], color=style["color"], marker=style["marker"], markerfacecolor="white")
        for one, style in zip(contenders, styles, strict=True)
    }
    by_nodes = {one.nodes: style["linestyle"] for one, style in zip(contenders, styles, strict=True)}
    entries |= {_nodes(n)[2:]: Line2D([], [], color="#555555", linestyle=by_nodes[n]) for n in sorted(by_nodes)}
    return entries | {name: handle for name, handle in handles.items() if name.startswith("target ")}


def _draw_scores(axes: Axes, found: Contest, styles: Sequence[dict[str, Any]], logarithmic: bool) -> None:
    """Draw a row per contender: median, interval, seeds. At the right edge is who missed the goal."""
    scores = [value for one in found.standings for value in one.scores if math.isfinite(value)]
    budget_s = [number(run.final("time_s")) for run in found.runs]
    largest = max(scores, default=max((value for value in budget_s if value == value), default=1.0))
    smallest = min((value for value in scores if value > 0), default=largest)
    if logarithmic:
        edge = largest * (largest / smallest) ** ROOM
        axes.set_xscale("log")
        axes.set_xlim(smallest * (smallest / largest) ** ROOM, edge)
        label_decades(axes.xaxis, largest / smallest)
    else:
        start = min([0.0, *scores])  # a loss may be negative
        edge = largest + ROOM * (largest - start or 1.0)
        axes.set_xlim(start, edge)
    for place, (one, style) in enumerate(zip(found.standings, styles, strict=True)):
        _draw_row(axes, place, one, style, edge)
    name_bars(axes, [one.name.replace(" node", "\N{NO-BREAK SPACE}node") for one in found.standings])
    timed = found.goal.level is not None
    axes.set_xlabel(f"{time_label(found.runs)}\nto {found.goal.text}" if timed else found.goal.text)


def _draw_row(axes: Axes, place: int, one: Standing, style: dict[str, Any], edge: float) -> None:
    colour, score = style["color"], one.score
    seeds = [value for value in one.scores if math.isfinite(value)]
    if len(one.scores) > 1:
        axes.plot(seeds, [place] * len(seeds), color=colour, marker="o", linestyle="", alpha=0.3, markersize=3)
    if score.low < score.high and math.isfinite(score.low):
        ends = [score.low, min(score.high, edge)]
        axes.plot(ends, [place, place], color=colour, linestyle=style["linestyle"])
        if math.isinf(score.high):
            axes.plot([edge], [place], color=colour, marker=">", clip_on=False, linestyle="")
    if math.isfinite(score.median):
        axes.plot([score.median], [place], color=colour, marker=style["marker"], markerfacecolor="white", linestyle="")
    if (bound := bound_of(score)) is not None:
        axes.plot([min(bound[0], edge)], [place], color=colour, **OPEN)
    if one.missed:
        end = min(map(end_s, one.contender.runs))
        never = (
            "never"
            if math.isinf(end) or one.contender.runs[0].target is None
            else f"not reached in {end:.3g}\N{NO-BREAK SPACE}s"
        )
        got = f"{len(seeds)} of {len(one.scores)} seeds" if seeds else never
        text = wrapped(got + status_note(one.contender.runs), 18)
        at_edge = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "va": "center"}
        axes.annotate(text, (1, place), (5, 0), color=colour, fontsize="small", **at_edge)


def _logarithmic(found: Contest) -> bool:
    scores = [value for one in found.standings for value in one.scores if math.isfinite(value)]
    return bool(scores) and min(scores) > 0 and max(scores) > LOG_FROM * min(scores)


def _log_time(axes: Axes, found: Contest) -> None:
    """Make the axis of time logarithmic, from a little before the first target that was reached."""
    drawn = np.array([number(mark.get("time_s")) for run in found.runs for mark in run.metrics])
    soonest = min(value for one in found.standings for value in one.scores)
    start = max(float(drawn[drawn > 0].min()), soonest / LOG_FROM)
    axes.set_xscale("log")
    axes.set_xlim(start, float(np.nanmax(drawn)))
    label_decades(axes.xaxis, float(np.nanmax(drawn)) / start)
