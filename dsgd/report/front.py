"""Draw contenders by time and cost to the target, and find the front: those that no other beats in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from dsgd.record.written import write_atomically
from dsgd.report.contest import Contender, Prices, contest
from dsgd.report.contest_figure import contender_styles
from dsgd.report.curves import time_label
from dsgd.report.interval import Estimate, interval_note
from dsgd.report.sentences import in_sentence, three_digits
from dsgd.report.sheet import panels, scale_log
from dsgd.report.style import FORMATS, NoData, finish, write_figure
from dsgd.safe_text import lines_for_terminal


@dataclass(frozen=True)
class FrontPoint:
    """A contender with its time and cost to the target. beaten: in the medians another one has no more of
    either, and less of one."""

    contender: Contender
    time_s: Estimate
    cost: Estimate
    beaten: bool


def front_points(contenders: Sequence[Contender], prices: Prices) -> list[FrontPoint]:
    """Return the contenders that reach the target on most seeds, by their median time. Raises NoData if none does."""
    times, costs = (
        {standing.name: standing.score for standing in contest(contenders, by).standings} for by in (None, prices)
    )
    medians = {name: (times[name].median, costs[name].median) for name in times}
    reached = {name: here for name, here in medians.items() if math.isfinite(sum(here))}
    if not reached:
        raise NoData("no contender with a known cost reached the target on most seeds")

    def beaten(here: tuple[float, float]) -> bool:
        return any(there != here and there[0] <= here[0] and there[1] <= here[1] for there in reached.values())

    points = [
        FrontPoint(contender, times[contender.name], costs[contender.name], beaten(reached[contender.name]))
        for contender in contenders
        if contender.name in reached
    ]
    return sorted(points, key=lambda point: (point.time_s.median, point.cost.median))


def front_sentence(points: Sequence[FrontPoint]) -> str:
    """Return `Time and cost: sync (11 s, 0.31) and gossip (14 s, 0.22) are beaten by no other in both.`"""
    names = [
        f"{in_sentence(point.contender.name)} ({three_digits(point.time_s.median)} s, "
        f"{three_digits(point.cost.median)})"
        for point in points
        if not point.beaten
    ]
    some = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"Time and cost: {some} {'is' if len(names) == 1 else 'are'} beaten by no other in both."


def front_figure(contenders: Sequence[Contender], prices: Prices) -> Figure:
    """Draw time against cost, median and interval of each contender, and a line through the front. Raises NoData."""
    points = front_points(contenders, prices)
    result = contest(contenders)
    styles = dict(zip((standing.name for standing in result.standings), contender_styles(result), strict=True))
    figure, (axes,) = panels(1)
    handles: dict[str, Artist] = {}
    front = [point for point in points if not point.beaten]
    front_s, front_costs = [point.time_s.median for point in front], [point.cost.median for point in front]
    axes.step(front_s, front_costs, where="post", color="#777777", linewidth=1.0, zorder=1.5)
    for point in points:
        style = styles[point.contender.name]
        x, y = point.time_s, point.cost
        (handles[point.contender.name],) = axes.plot(
            [x.median], [y.median], color=style["color"], marker=style["marker"], markerfacecolor="white", linestyle=""
        )
        axes.plot([x.low, _end(x)], [y.median] * 2, color=style["color"], linewidth=1.0)
        axes.plot([x.median] * 2, [y.low, _end(y)], color=style["color"], linewidth=1.0)
    scale_log(axes, "x", [point.time_s.median for point in points])
    scale_log(axes, "y", [point.cost.median for point in points])
    axes.set_xlabel(f"{time_label(result.runs)}\nto {result.goal.text}")
    axes.set_ylabel(f"cost\n{prices.text}")
    note = interval_note([result.seeds])
    return finish(figure, result.runs, handles, [*[note] * bool(note), "grey line: the front, medians"])


def write_front(
    contenders: Sequence[Contender], prices: Prices, stem: Path, width: str = "wide", formats: Sequence[str] = FORMATS
) -> str:
    """Write the figure as `<stem>` in each format and the sentence as `<stem>.txt`; returns the sentence. Raises NoData
    before anything is written, OSError for files that cannot be written."""
    text = lines_for_terminal(front_sentence(front_points(contenders, prices)))
    write_figure(lambda: front_figure(contenders, prices), stem, width, formats)
    write_atomically(stem.with_suffix(".txt"), f"{text}\n".encode())
    return text


def _end(value: Estimate) -> float:
    return value.high if math.isfinite(value.high) else value.median
