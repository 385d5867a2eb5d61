"""Draw time to target and speed-up against the number of nodes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from dsgd.record.reader import Run
from dsgd.report.censored import NOTE, draw_limits, limit_s
from dsgd.report.crossing import time_to_target_s
from dsgd.report.curves import MANY, time_label
from dsgd.report.interval import estimate, interval_note
from dsgd.report.labels import Series, goal_text, series
from dsgd.report.scales import is_log, label_decades
from dsgd.report.sheet import panels
from dsgd.report.style import NoData, curve_styles, finish, plot_band


@dataclass(frozen=True)
class Scaling:
    """One algorithm and configuration over node counts.

    seconds: node count (ascending): time to target of each of its runs, only where every run reached it.
    missed: the node counts where some run did not, and the seconds within which it did not; NaN where that says
    nothing."""

    series: Series
    seconds: dict[int, list[float]]
    missed: dict[int, float]

    @property
    def label(self) -> str:
        """Return what tells it from the others."""
        return self.series.label


@dataclass(frozen=True)
class Base:
    """Hold what all speed-ups of a figure are relative to. seconds: median time to target over seeds."""

    label: str
    nodes: int
    seconds: float


def speed_up_base(found: Sequence[Scaling]) -> Base:
    """Return the soonest at the smallest node count that was run: one base for all, the strictest that there is.

    Raises NoData if nothing reached its target there."""
    nodes = min(count for one in found for count in (*one.seconds, *one.missed))
    at_base = [Base(one.label, nodes, median(one.seconds[nodes])) for one in found if nodes in one.seconds]
    if not at_base:
        raise NoData(f"no run on the smallest number of nodes, {nodes}, reached its target")
    return min(at_base, key=lambda base: base.seconds)


def scalings(runs: Sequence[Run]) -> list[Scaling]:
    """Gather the runs with a target by what differs apart from node count and seed.

    Raises NoData unless there are two node counts with a target, one of them reached."""
    aimed = [run for run in runs if run.target is not None and run.nodes]
    counts = {run.nodes for run in aimed}
    if len(counts) < 2:
        raise NoData("no run has a target" if not counts else f"all runs with a target have nodes={counts.pop()}")
    found = []
    for one in series(aimed, apart_from=("nodes",)):
        by_nodes: dict[int, list[Run]] = {}
        for run in sorted(one.runs, key=lambda run: run.nodes or 0):
            by_nodes.setdefault(run.nodes or 0, []).append(run)
        times = {nodes: [_seconds(run) for run in members] for nodes, members in by_nodes.items()}
        reached = {nodes: each for nodes, each in times.items() if all(map(math.isfinite, each))}
        late = {nodes: [run for run in by_nodes[nodes] if not math.isfinite(_seconds(run))] for nodes in by_nodes}
        found.append(Scaling(one, reached, {nodes: limit_s(members) for nodes, members in late.items() if members}))
    if not any(one.seconds for one in found):
        raise NoData("no run reached its target")
    return found


def _seconds(run: Run) -> float:
    """Return the time to target of a run; infinite where it did not get there."""
    seconds = time_to_target_s(run)
    return math.inf if seconds is None else seconds


def time_to_target_figure(runs: Sequence[Run]) -> Figure:
    """Draw time to target against nodes, one line per algorithm. Raises NoData."""
    found = scalings(runs)
    seconds, limits = [one.seconds for one in found], [one.missed for one in found]
    figure, axes, handles, notes = _draw(found, seconds, limits, " s")
    axes.set_ylabel(f"{time_label(runs)}\nto {goal_text(runs)}")
    every = np.array([seconds for one in found for each in one.seconds.values() for seconds in each])
    every = np.append(every, [limit for one in found for limit in one.missed.values() if math.isfinite(limit)])
    if is_log("y", every):
        axes.set_yscale("log")
        label_decades(axes.yaxis, float(every.max() / every[every > 0].min()))
    else:
        axes.set_ylim(0, 1.08 * float(every.max()) or 1.0)
    return finish(figure, runs, handles, notes)


def speed_up_figure(runs: Sequence[Run]) -> Figure:
    """Draw the speed-up of all over one base, that of `speed_up_base`, and linear speed-up. Raises NoData."""
    if len({run.clock for run in runs} - {None}) > 1:
        raise NoData("virtual and wall time have no common base: draw the runs of each engine apart")
    found = scalings(runs)
    base = speed_up_base(found)
    ratios = [{nodes: [base.seconds / s for s in times] for nodes, times in one.seconds.items()} for one in found]
    if not any(nodes > base.nodes for ratio in ratios for nodes in ratio):
        raise NoData(f"no run on more than {base.nodes} nodes reached its target")
    least = [{nodes: base.seconds / limit for nodes, limit in one.missed.items() if limit > 0} for one in found]
    figure, axes, handles, notes = _draw(found, ratios, least, upper=True)
    where = f"{base.label} on {base.nodes} node{'s' * (base.nodes != 1)}"
    axes.set_ylabel(f"speed-up over\n{textwrap.fill(where, 28)}")
    counts = np.array([base.nodes, max(nodes for ratio in ratios for nodes in ratio)], dtype=float)
    (handles["linear"],) = axes.plot(counts, counts / base.nodes, color="#777777", linewidth=1.0, zorder=1.5)
    if is_log("y", [1.0], by_default=True):
        axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    return finish(figure, runs, handles, notes)


def _draw(
    found: Sequence[Scaling],
    values: Sequence[dict[int, list[float]]],
    limits: Sequence[Mapping[int, float]],
    unit: str = "",
    upper: bool = False,
) -> tuple[Figure, Axes, dict[str, Line2D], list[str]]:
    """Draw values by node count, one line each, and limits of those that were missed as hollow arrows; returns the
    figure, its panel, legend entries and notes. unit: of the limits. upper: the values lie below them."""
    figure, (axes,) = panels(1)
    handles: dict[str, Line2D] = {}
    bands = len(found) < MANY
    marks: list[tuple[float, float, str]] = []
    for one, value, limit, style in zip(
        found, values, limits, curve_styles([one.series for one in found]), strict=True
    ):
        if value:
            points = [estimate(each) for each in value.values()]
            middle, low, high = ([getattr(point, part) for point in points] for part in ("median", "low", "high"))
            low, high = (low, high) if bands else (middle, middle)
            handles[_legend(one)] = plot_band(axes, list(value), middle, low, high, **style)
        elif limit:
            handles[_legend(one)] = Line2D([], [], markerfacecolor="white", **style)
        marks += [(nodes, end, style["color"]) for nodes, end in limit.items() if math.isfinite(end)]
    draw_limits(axes, marks, unit, upper)
    counts = sorted({nodes for value in [*values, *limits] for nodes in value})
    if is_log("x", [1.0], by_default=True):
        axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(nodes) for nodes in counts])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("nodes")
    note = interval_note([len(each) for value in values for each in value.values()])
    notes = [note if bands else f"medians over seeds; no bands with {MANY} lines or more"] if note else []
    notes += [NOTE] * any(math.isfinite(end) for limit in limits for end in limit.values())
    return figure, axes, handles, notes


def _legend(one: Scaling) -> str:
    missed = ", ".join(map(str, one.missed))
    return f"{one.label} (target missed at {missed})" if missed else one.label
