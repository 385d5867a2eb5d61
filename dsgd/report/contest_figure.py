"""Draw a contest: who gets to the target when, with intervals and seeds, beside the curves that led there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from dsgd.record.reader import number
from dsgd.report.censored import NOTE as ARROWS
from dsgd.report.censored import Bound, draw_censored
from dsgd.report.contest import Contender, Contest, Standing
from dsgd.report.contest_table import tuning_notes
from dsgd.report.curves import MANY, draw_field, has_data, time_label, x_axis
from dsgd.report.interval import interval_note
from dsgd.report.labels import Series, status_note
from dsgd.report.scales import DECADE, is_log, label_decades
from dsgd.report.setting import setting_text
from dsgd.report.sheet import beside_or_below, empty_figure, name_bars, panels, wrapped
from dsgd.report.small_multiples import NOTE as GREY
from dsgd.report.small_multiples import draw_multiples, multiples_height
from dsgd.report.style import annotate, finish, named_styles

_TARGET: dict[str, Any] = {"color": "#777777", "linewidth": 1.0, "linestyle": (0, (2, 2))}
ROOM = 0.12  # share of the axis beyond the largest number that is drawn on it


def contest_figure(found: Contest) -> Figure:
    """Draw the scores, the first on top, and, where there are marks, the test accuracy against time; the loss where
    that is the target. The curves of MANY contenders have a small panel each."""
    field = _field(found)
    if field is None:
        figure, (scores,) = panels(1)
        _draw_scores(scores, found)
        return finish(figure, found.runs, _legend(found, {}), _notes(found))
    if len(found.standings) < MANY:
        figure, (scores, curves) = panels(2)
        _draw_scores(scores, found)
        return finish(figure, found.runs, _legend(found, _draw_curves(curves, found, field)), _notes(found))
    names = [one.name for one in found.standings]
    left, right, figure = beside_or_below(names, multiples_height(len(names)))
    scores = left.subplots()
    _draw_scores(scores, found)
    small = _draw_small_curves(right, found, field)
    return annotate(figure, found.runs, [*_notes(found), _small_note(found)], lettered=[scores, small[0]])


def contest_parts(found: Contest) -> list[Figure]:
    """Return the two parts of the figure as figures of their own, without the title, which the page around them has."""
    scores, (axes,) = panels(1)
    _draw_scores(axes, found)
    parts = [annotate(scores, [], [*_notes(found), setting_text(found.runs)])]
    field = _field(found)
    if field is not None and len(found.standings) < MANY:
        figure, (axes,) = panels(1)
        parts.append(finish(figure, [], _legend(found, _draw_curves(axes, found, field))))
    elif field is not None:
        figure = empty_figure(scores.get_figwidth(), multiples_height(len(found.standings)))
        part = figure.add_subfigure(figure.add_gridspec()[0])  # the notes take the place of the figure's own label
        _draw_small_curves(part, found, field)
        parts.append(annotate(figure, [], [_small_note(found)], lettered=[]))
    return parts


def _field(found: Contest) -> str | None:
    """Return the field that the curves show; None without marks that have any."""
    fields = ["test_loss", "train_loss"] if found.goal.of == "loss" else ["test_accuracy"]
    return next((field for field in fields if has_data(found.runs, "time_s", field)), None)


def _draw_curves(axes: Axes, found: Contest, field: str) -> dict[str, Artist]:
    """Draw the curves of all contenders in one panel; returns the entries of a legend."""
    handles: dict[str, Artist] = {}
    handles |= draw_field(axes, contender_series(found), x_axis("time", found.runs), field, contender_styles(found))
    if found.goal.of == "loss" and (level := found.goal.level) is not None:
        handles[f"target {level:g}"] = axes.axhline(level, **_TARGET)
    _scale_time(axes, found)
    return handles


def _draw_small_curves(figure: SubFigure, found: Contest, field: str) -> list[Axes]:
    """Draw the curve of each contender in a small panel, in the order of the standings; returns the panels."""
    axis = x_axis("time", found.runs)
    small = draw_multiples(figure, contender_series(found), axis, field, contender_styles(found))
    if found.goal.of == "loss" and found.goal.level is not None:
        for axes in small:
            axes.axhline(found.goal.level, **_TARGET)
    _scale_time(small[0], found)
    return small


def _small_note(found: Contest) -> str:
    level = found.goal.level
    return GREY if level is None else f"{GREY}; dashed: the target, {level:g}"


def _notes(found: Contest) -> list[str]:
    """Return what dots, lines and arrows are, and what was tuned."""
    note = interval_note([found.seeds])
    limited = any(_bound(found, one) is not None for one in found.standings)
    return [*[f"dots: seeds; lines and bands: {note}"] * bool(note), *[ARROWS] * limited, *tuning_notes(found)]


def contender_series(found: Contest) -> list[Series]:
    """Return the runs of each contender as the curves show them, in the order of the standings."""
    return [Series(one.name, list(one.contender.runs)) for one in found.standings]


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


def _legend(found: Contest, handles: dict[str, Artist]) -> dict[str, Artist]:
    """Return the entries of the legend: of contenders that are so many options on so many nodes, one for each of either
    instead of one for each contender."""
    contenders, styles = [one.contender for one in found.standings], contender_styles(found)
    if not all(one.name.endswith(_nodes(one.nodes)) for one in contenders):
        return handles
    entries: dict[str, Artist] = {
        _options(one): Line2D([], [], color=style["color"], marker=style["marker"], markerfacecolor="white")
        for one, style in zip(contenders, styles, strict=True)
    }
    by_nodes = {one.nodes: style["linestyle"] for one, style in zip(contenders, styles, strict=True)}
    entries |= {_nodes(n)[2:]: Line2D([], [], color="#555555", linestyle=by_nodes[n]) for n in sorted(by_nodes)}
    return entries | {name: handle for name, handle in handles.items() if name.startswith("target ")}


def _draw_scores(axes: Axes, found: Contest) -> None:
    """Draw a row per contender: median, interval, seeds. Who missed the goal has a hollow arrow at the limit."""
    scores = [value for one in found.standings for value in one.scores if math.isfinite(value)]
    limits = [bound.limit for one in found.standings if (bound := _bound(found, one)) is not None]
    largest = max([*scores, *limits], default=1.0)
    smallest = min((value for value in scores if value > 0), default=largest)
    if _logarithmic(found):
        edge = largest * (largest / smallest) ** ROOM
        axes.set_xscale("log")
        axes.set_xlim(smallest * (smallest / largest) ** ROOM, edge)
        label_decades(axes.xaxis, largest / smallest)
    else:
        start = min([0.0, *scores])  # a loss may be negative
        edge = largest + ROOM * (largest - start or 1.0)
        axes.set_xlim(start, edge)
    for place, (one, style) in enumerate(zip(found.standings, contender_styles(found), strict=True)):
        bound = _bound(found, one)
        _draw_row(axes, place, one, style, edge if bound is None else bound.limit)
        if one.missed:
            at_edge = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "va": "center"}
            axes.annotate(
                _missed(one, bound, found.unit), (1, place), (7, 0), color=style["color"], fontsize="small", **at_edge
            )
    name_bars(axes, [one.name.replace(" node", "\N{NO-BREAK SPACE}node") for one in found.standings])
    timed = found.goal.level is not None
    label = time_label(found.runs) if found.prices is None else f"cost ({found.prices.text})"
    axes.set_xlabel(f"{label}\nto {found.goal.text}" if timed else found.goal.text)


def _draw_row(axes: Axes, place: int, one: Standing, style: dict[str, Any], limit: float) -> None:
    """Draw seeds, interval and median. limit: where those are that did not get there."""
    colour, score = style["color"], one.score
    seeds = [value for value in one.scores if math.isfinite(value)]
    if len(one.scores) > 1:
        axes.plot(seeds, [place] * len(seeds), color=colour, marker="o", linestyle="", alpha=0.3, markersize=3)
    if score.low < score.high and math.isfinite(score.low):
        axes.plot([score.low, min(score.high, limit)], [place, place], color=colour, linestyle=style["linestyle"])
    if one.missed:
        draw_censored(axes, limit, place, ">", color=colour)
    if math.isfinite(score.median):
        axes.plot([score.median], [place], color=colour, marker=style["marker"], markerfacecolor="white", linestyle="")


def _bound(found: Contest, one: Standing) -> Bound | None:
    """Return what the seeds that missed the target are known to exceed; None where none did, and where nothing is
    known."""
    missed = [run for run, score in zip(one.contender.runs, one.scores, strict=True) if math.isinf(score)]
    ends = [end for run in missed if math.isfinite(end := found.end(run))]
    return Bound(min(ends), ">") if ends else None


def _missed(one: Standing, bound: Bound | None, unit: str) -> str:
    """Return `> 40 s`, `2 of 5 > 40 s`, `never (diverged)`."""
    some = f"{one.missed} of {len(one.scores)}" if one.missed < len(one.scores) else ""
    text = "never" if bound is None else bound.text(unit)
    return wrapped(f"{some} {text}".strip() + status_note(one.contender.runs), 18)


def _logarithmic(found: Contest) -> bool:
    scores = [value for one in found.standings for value in one.scores if math.isfinite(value)]
    return bool(scores) and min(scores) > 0 and is_log("x", scores)


def _scale_time(axes: Axes, found: Contest) -> None:
    """Make the axis of time logarithmic where that of the scores is, from a little before the first target that was
    reached."""
    if found.goal.level is None or found.prices is not None or not _logarithmic(found):
        return
    drawn = np.array([number(mark.get("time_s")) for run in found.runs for mark in run.metrics])
    soonest = min(value for one in found.standings for value in one.scores)
    start = max(float(drawn[drawn > 0].min()), soonest / DECADE)
    axes.set_xscale("log")
    axes.set_xlim(start, float(np.nanmax(drawn)))
    label_decades(axes.xaxis, float(np.nanmax(drawn)) / start)
