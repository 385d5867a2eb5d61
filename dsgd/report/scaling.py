"""Draw time to target, speed-up and efficiency against the number of nodes.

Efficiency is the speed-up for each node that was added: 1 where twice the nodes take half the time to the target."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from dsgd.record.reader import Run
from dsgd.report.censored import NOTE, bound_of, draw_limits
from dsgd.report.contest import Contender
from dsgd.report.curves import MANY, time_label
from dsgd.report.fields import field_value
from dsgd.report.interval import Estimate, estimate, interval_note
from dsgd.report.labels import Series, goal_text, series
from dsgd.report.ratio import PAIRED, time_ratio
from dsgd.report.setting import setting_text, whole_setting
from dsgd.report.sheet import is_log, label_decades, panels
from dsgd.report.style import NoData, curve_styles, drawing, finish, plot_band, save
from dsgd.report.table_layout import Cell, ReportTable, exact
from dsgd.report.time_to_target import end_s, time_to_target_s
from dsgd.safe_text import for_terminal

_GAP = Estimate(math.nan, math.nan, math.nan, 0)  # in a line


@dataclass(frozen=True)
class Scaling:
    """One algorithm and configuration over node counts. runs: node count (ascending): its runs that have ended."""

    series: Series
    runs: dict[int, list[Run]]

    @property
    def label(self) -> str:
        """Return what tells it from the others."""
        return self.series.label

    @property
    def times(self) -> dict[int, Estimate]:
        """Return the time to target by the node count."""
        return {
            nodes: estimate([field_value(run, "time_to_target_s") for run in runs], censored=list(map(end_s, runs)))
            for nodes, runs in self.runs.items()
        }

    @property
    def missed(self) -> list[int]:
        """Return the node counts at which some run did not reach the target."""
        return [nodes for nodes, runs in self.runs.items() if any(time_to_target_s(run) is None for run in runs)]


@dataclass(frozen=True)
class Base:
    """Hold what all speed-ups of a figure are relative to. seconds: median time to target over seeds."""

    label: str
    nodes: int
    seconds: float
    runs: Sequence[Run] = field(default=(), compare=False)

    @property
    def text(self) -> str:
        """Return `gossip on 4 nodes`."""
        return f"{self.label} on {self.nodes} node{'s' * (self.nodes != 1)}"


def speed_up_base(gathered: Sequence[Scaling]) -> Base:
    """Return the soonest at the smallest node count that was run: one base for all, the strictest that there is.

    Raises NoData if nothing reached its target there."""
    nodes = min(count for scaling in gathered for count in scaling.runs)
    times = {scaling.label: scaling.times.get(nodes) for scaling in gathered}
    at_base = [
        Base(scaling.label, nodes, time.median, scaling.runs[nodes])
        for scaling in gathered
        if (time := times[scaling.label]) is not None and math.isfinite(time.median)
    ]
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
    gathered = []
    for line in series(aimed, apart_from=("nodes",)):
        by_nodes: dict[int, list[Run]] = {}
        for run in sorted(line.runs, key=lambda run: run.nodes or 0):
            if run.status != "running":
                by_nodes.setdefault(run.nodes or 0, []).append(run)
        gathered.append(Scaling(line, by_nodes))
    if not any(time_to_target_s(run) is not None for run in aimed):
        raise NoData("no run reached its target")
    return gathered


def time_to_target_figure(runs: Sequence[Run]) -> Figure:
    """Draw time to target against nodes, one line per algorithm. Raises NoData."""
    gathered = scalings(runs)
    figure, (axes,) = panels(1)
    handles, notes = draw_by_nodes(axes, gathered, [scaling.times for scaling in gathered], " s")
    axes.set_ylabel(f"{time_label(runs)}\nto {goal_text(runs)}")
    ends = [axes.dataLim.y0, axes.dataLim.y1]
    if is_log("y", ends):
        axes.set_yscale("log")
        label_decades(axes.yaxis, ends[1] / ends[0])
    else:
        axes.set_ylim(0, 1.08 * ends[1] or 1.0)
    return finish(figure, runs, handles, notes)


def speed_up_figure(runs: Sequence[Run]) -> Figure:
    """Draw the speed-up of all over one base, that of `speed_up_base`, and linear speed-up: the time of the base over
    that of the run, paired by seed. Raises NoData."""
    gathered = scalings(runs)
    base, ratios = speed_ups(gathered)
    figure, (axes,) = panels(1)
    handles, notes = draw_speed_ups(axes, gathered, base, ratios)
    return finish(figure, runs, handles, notes)


def speed_ups(gathered: Sequence[Scaling]) -> tuple[Base, list[dict[int, Estimate]]]:
    """Return the base and the speed-ups of each line over it, by the node count. Raises NoData."""
    if len({run.clock for scaling in gathered for runs in scaling.runs.values() for run in runs} - {None}) > 1:
        raise NoData("virtual and wall time have no common base: draw the runs of each engine apart")
    base = speed_up_base(gathered)
    ratios = [{nodes: time_ratio(base.runs, each) for nodes, each in scaling.runs.items()} for scaling in gathered]
    if not any(nodes > base.nodes and r.median > 0 for ratio in ratios for nodes, r in ratio.items()):
        raise NoData(f"no run on more than {base.nodes} nodes reached its target")
    return base, ratios


def draw_speed_ups(
    axes: Axes, gathered: Sequence[Scaling], base: Base, ratios: Sequence[dict[int, Estimate]]
) -> tuple[dict[str, Line2D], list[str]]:
    """Draw speed-ups over a base, and linear speed-up, in a panel; returns legend entries and notes."""
    handles, notes = draw_by_nodes(axes, gathered, ratios)
    axes.set_ylabel(f"speed-up over\n{textwrap.fill(base.text, 28)}")
    counts = np.array(
        [base.nodes, max(nodes for ratio in ratios for nodes, r in ratio.items() if r.median > 0)], dtype=float
    )
    (handles["linear"],) = axes.plot(counts, counts / base.nodes, color="#777777", linewidth=1.0, zorder=1.5)
    if is_log("y", [1.0], by_default=True):
        axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    return handles, [*notes, f"speed-up: {PAIRED}"]


def draw_by_nodes(
    axes: Axes, gathered: Sequence[Scaling], values: Sequence[dict[int, Estimate]], unit: str = ""
) -> tuple[dict[str, Line2D], list[str]]:
    """Draw values by node count, one line each, and hollow arrows for the censored ones, in a panel; returns legend
    entries and notes. unit: of the values."""
    handles: dict[str, Line2D] = {}
    bands = len(gathered) < MANY
    limits = []
    known = [end for value in values for point in value.values() for end in (point.median, point.high)]
    top = 1.3 * max((end for end in known if math.isfinite(end)), default=1.0)  # of an interval that has no end
    for scaling, value, style in zip(
        gathered, values, curve_styles([scaling.series for scaling in gathered]), strict=True
    ):
        points = [point if 0 < point.median < math.inf else _GAP for point in value.values()]
        bounds = {nodes: bound for nodes, point in value.items() if (bound := bound_of(point)) is not None}
        limits += [(float(nodes), bound, style["color"]) for nodes, bound in bounds.items()]
        if (middle := np.array([point.median for point in points])).size and not np.isnan(middle).all():
            low = [point.low or np.nanmin(middle) / 3 for point in points]
            high = [min(point.high, top) for point in points]
            low, high = (low, high) if bands else (middle, middle)
            handles[_legend(scaling)] = plot_band(axes, list(value), middle, low, high, **style)
        elif bounds:
            handles[_legend(scaling)] = Line2D([], [], markerfacecolor="white", **style)
    draw_limits(axes, limits, unit)
    counts = sorted({nodes for value in values for nodes in value})
    if is_log("x", [1.0], by_default=True):
        axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(nodes) for nodes in counts])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("nodes")
    note = interval_note([point.count for value in values for point in value.values()])
    notes = [note if bands else f"medians over seeds; no bands with {MANY} lines or more"] if note else []
    return handles, [*notes, *[NOTE] * bool(limits)]


def _legend(scaling: Scaling) -> str:
    missed = ", ".join(map(str, scaling.missed))
    return f"{scaling.label} (not reached at {missed})" if missed else scaling.label


def contender_scalings(contenders: Sequence[Contender]) -> list[Scaling]:
    """Gather the contenders that differ in their number of nodes alone; those on one number of nodes are left out."""
    gathered: dict[str, dict[int, Contender]] = {}
    for contender in sorted(contenders, key=lambda contender: contender.nodes):
        name = for_terminal(contender.name.removesuffix(f", {contender.nodes} nodes"))
        gathered.setdefault(name, {})[contender.nodes] = contender
    return [
        Scaling(
            Series(name, [run for contender in by_nodes.values() for run in contender.runs]),
            {nodes: list(contender.runs) for nodes, contender in by_nodes.items()},
        )
        for name, by_nodes in gathered.items()
        if len(by_nodes) > 1
    ]


def efficiencies(base: Base, ratios: dict[int, Estimate]) -> dict[int, Estimate]:
    """Return the efficiency by the node count. ratios: speed-ups over the base."""
    return {nodes: _scaled(ratio, base.nodes / nodes) for nodes, ratio in ratios.items()}


def scaling_figure(gathered: Sequence[Scaling]) -> Figure:
    """Draw speed-up and efficiency against nodes, one line for each contender. Raises NoData."""
    base, ratios = speed_ups(gathered)
    figure, (left, right) = panels(2)
    handles, notes = draw_speed_ups(left, gathered, base, ratios)
    draw_by_nodes(right, gathered, [efficiencies(base, each) for each in ratios])
    right.axhline(1.0, color="#777777", linewidth=1.0, zorder=1.5)
    right.set_ylim(bottom=0)
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    right.set_ylabel("efficiency")
    runs = [run for scaling in gathered for run in scaling.series.runs]
    return finish(figure, runs, handles, [*notes, f"efficiency: speed-up over times as many nodes as {base.nodes}"])


def scaling_table(gathered: Sequence[Scaling]) -> ReportTable:
    """Return a row for each contender and number of nodes. Raises NoData."""
    base, ratios = speed_ups(gathered)
    heads = ["contender", "nodes", "time to target (s)", "speed-up", "efficiency"]
    rows: list[list[Cell]] = []
    for scaling, ratio in zip(gathered, ratios, strict=True):
        times, shares = scaling.times, efficiencies(base, ratio)
        rows += [[scaling.label, nodes, times[nodes], ratio[nodes], shares[nodes]] for nodes in scaling.runs]
    csv_rows = [["contender", "nodes", "time_to_target_s", "speed_up", "efficiency"]]
    csv_rows += [[*row[:2], *(exact(cell.median) for cell in row[2:] if isinstance(cell, Estimate))] for row in rows]
    runs = [run for scaling in gathered for run in scaling.series.runs]
    notes = [
        f"speed-up: over {base.text}, {PAIRED}",
        f"efficiency: speed-up × {base.nodes} / nodes",
        setting_text(runs),
    ]
    return ReportTable(heads, frozenset({"contender"}), rows, csv_rows, "\n".join(notes), whole=whole_setting(runs))


def write_scaling(
    gathered: Sequence[Scaling], stem: Path, width: str = "wide", formats: Sequence[str] = ("png", "svg", "pdf")
) -> ReportTable:
    """Write the figure as `<stem>` in each format, and the files of the table; returns the table to print.

    Raises NoData before anything is written, OSError for files that cannot be written."""
    table = scaling_table(gathered)
    with drawing(width):
        figure = scaling_figure(gathered)
        for kind in formats:
            save(figure, stem.with_suffix(f".{kind}"))
    table.write(stem)
    return table


def _scaled(value: Estimate, factor: float) -> Estimate:
    ends = {name: getattr(value, name) * factor for name in ("median", "low", "high")}
    limits = {
        name: None if (limit := getattr(value, name)) is None else _scaled(limit, factor) for name in ("above", "below")
    }
    return replace(value, **ends, **limits)
