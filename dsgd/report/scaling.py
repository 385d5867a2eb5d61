"""Draw time to target, speed-up and efficiency against the number of nodes; compute the speed-ups of all figures.

Efficiency is the speed-up for each added node: 1 if twice the nodes take half the time to the target."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from dsgd.record.reader import Run
from dsgd.record.safe_text import counted
from dsgd.report.curves import MANY, draw_estimates, time_label
from dsgd.report.fields import estimate_of, field_value, is_rate, is_time, time_ratio, time_to_target_s
from dsgd.report.interval import PAIRED, Estimate, interval_note
from dsgd.report.labels import Series, differing_keys, find_key, flatten, goal_text, in_order, series
from dsgd.report.look import WIDE, Look
from dsgd.report.setting import setting_text, whole_setting
from dsgd.report.sheet import NOTE, bound_of, is_log, panels, scale_log
from dsgd.report.style import NoData, finish, styled, write_figure
from dsgd.report.table_layout import Cell, ReportTable, exact

TIME = "time_to_target_s"
Line = tuple[Series, Mapping[float, Estimate]]  # with its values by the number of nodes


def speed_up(base: Series, runs: Sequence[Run], name: str = TIME) -> Estimate:
    """Return the speed-up of some runs over the base's, paired by seed; for rates, the inverse ratio.

    name: the compared field."""
    return time_ratio(runs, base.runs, name) if is_rate(name) else time_ratio(base.runs, runs, name)


def named_base(runs: Sequence[Run], text: str, name: str) -> Series:
    """Return the base that `algo=sync,nodes=1` names. Raises ValueError unless it is one configuration with values."""
    if not is_time(name) and not is_rate(name):
        raise ValueError(f"--base needs a time or a rate as --y (step_s, samples_per_s, ...), got {name}")
    flats = flatten(runs)
    chosen = list(range(len(runs)))
    for part in text.split(","):
        short, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"--base must be KEY=VALUE, separated by commas, got {part!r}")
        key = find_key(runs, short, "--base")
        values = in_order(flat[key] for flat in flats)
        if value not in values:
            raise ValueError(f"--base {short} must be of {', '.join(values)}, got {value!r}")
        chosen = [i for i in chosen if flats[i][key] == value]
    if not chosen:
        raise ValueError(f"--base {text}: no run has all of these")
    if differing := differing_keys([flats[i] for i in chosen]):
        raise ValueError(f"--base must name one configuration, got {text}: its runs differ in {', '.join(differing)}")
    known = [runs[i] for i in chosen if not math.isnan(field_value(runs[i], name))]
    if not any(0 < field_value(run, name) < math.inf for run in known):
        raise ValueError(f"--base {text}: no run has {name}")
    return Series(text.replace(",", ", "), known)


def soonest_base(gathered: Sequence[Series]) -> Series:
    """Return the soonest at the smallest node count: one base for all, the strictest one.

    Raises NoData if nothing reached its target there."""
    nodes = min(count for line in gathered for count in line.by_nodes)
    at_base = [(estimate_of(line.by_nodes[nodes], TIME).median, line) for line in gathered if nodes in line.by_nodes]
    reached = [timed for timed in at_base if math.isfinite(timed[0])]
    if not reached:
        raise NoData(f"no run on the smallest number of nodes, {nodes}, reached its target")
    _, soonest = min(reached, key=lambda timed: timed[0])
    return Series(f"{soonest.label} on {counted(nodes, 'node')}", soonest.by_nodes[nodes])


def scalings(runs: Sequence[Run]) -> list[Series]:
    """Gather the runs with a target by their differences other than node count and seed.

    Raises NoData unless there are two node counts with a target, one of them reached."""
    aimed = [run for run in runs if run.target is not None and run.nodes]
    counts = {run.nodes for run in aimed}
    if len(counts) < 2:
        raise NoData("no run has a target" if not counts else f"all runs with a target have nodes={counts.pop()}")
    if not any(time_to_target_s(run) is not None for run in aimed):
        raise NoData("no run reached its target")
    return series(aimed, apart_from=("nodes",))


def time_to_target_figure(runs: Sequence[Run]) -> Figure:
    """Draw time to target against nodes, one line per algorithm. Raises NoData."""
    figure, (axes,) = panels(1)
    handles, notes = _draw_by_nodes(axes, [(line, times(line)) for line in styled(scalings(runs))], " s")
    axes.set_ylabel(f"{time_label(runs)}\nto {goal_text(runs)}")
    ends = [axes.dataLim.y0, axes.dataLim.y1]
    if not scale_log(axes, "y", ends):
        axes.set_ylim(0, 1.08 * ends[1] or 1.0)
    return finish(figure, runs, handles, notes)


def speed_up_figure(runs: Sequence[Run]) -> Figure:
    """Draw the speed-up of all over one base, `soonest_base`, and linear speed-up: the time of the base over the time
    of the run, paired by seed. Raises NoData."""
    base, ratios = speed_ups(scalings(runs))
    figure, (axes,) = panels(1)
    handles, notes = _draw_speed_ups(axes, base, ratios)
    return finish(figure, runs, handles, notes)


def scaling_figure(gathered: Sequence[Series]) -> Figure:
    """Draw speed-up and efficiency against nodes, one line for each contender. Raises NoData."""
    base, ratios = speed_ups(gathered)
    figure, (left, right) = panels(2)
    handles, notes = _draw_speed_ups(left, base, ratios)
    _draw_by_nodes(right, [(line, efficiencies(base, ratio)) for line, ratio in ratios])
    right.axhline(1.0, color="#777777", linewidth=1.0, zorder=1.5)
    right.set_ylim(bottom=0)
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    right.set_ylabel("efficiency")
    runs = [run for line in gathered for run in line.runs]
    return finish(figure, runs, handles, [*notes, f"efficiency: speed-up over times as many nodes as {base.nodes}"])


def scaling_table(gathered: Sequence[Series]) -> ReportTable:
    """Return a row for each contender and number of nodes. Raises NoData."""
    base, ratios = speed_ups(gathered)
    heads = ["contender", "nodes", "time to target (s)", "speed-up", "efficiency"]
    rows: list[list[Cell]] = []
    for line, ratio in ratios:
        seconds, shares = times(line), efficiencies(base, ratio)
        rows += [[line.label, nodes, seconds[nodes], ratio[nodes], shares[nodes]] for nodes in line.by_nodes]
    csv_rows = [["contender", "nodes", "time_to_target_s", "speed_up", "efficiency"]]
    csv_rows += [[*row[:2], *(exact(cell.median) for cell in row[2:] if isinstance(cell, Estimate))] for row in rows]
    runs = [run for line in gathered for run in line.runs]
    notes = [f"speed-up: over {base.label}, {PAIRED}", f"efficiency: speed-up × {base.nodes} / nodes"]
    caption = "\n".join([*notes, setting_text(runs)])
    return ReportTable(heads, frozenset({"contender"}), rows, csv_rows, caption, whole=whole_setting(runs))


def write_scaling(gathered: Sequence[Series], stem: Path, look: Look = WIDE) -> ReportTable:
    """Write the figure as `<stem>` in each format, and the files of the table; returns the table to print.

    Raises NoData before anything is written, OSError for files that cannot be written."""
    table = scaling_table(gathered)
    write_figure(lambda: scaling_figure(gathered), stem, look)
    table.write(stem)
    return table


def times(line: Series) -> dict[float, Estimate]:
    """Return the time to target by the node count."""
    return {nodes: estimate_of(runs, TIME) for nodes, runs in line.by_nodes.items()}


def speed_ups(gathered: Sequence[Series]) -> tuple[Series, list[Line]]:
    """Return the base and each line, with its style, and its speed-ups over the base by the node count. Raises
    NoData."""
    if len({run.clock for line in gathered for runs in line.by_nodes.values() for run in runs} - {None}) > 1:
        raise NoData("virtual and wall time have no common base: draw the runs of each engine apart")
    base = soonest_base(gathered)
    ratios: list[Line] = [
        (line, {nodes: speed_up(base, each) for nodes, each in line.by_nodes.items()}) for line in styled(gathered)
    ]
    if not any(nodes > base.nodes and r.median > 0 for _, ratio in ratios for nodes, r in ratio.items()):
        raise NoData(f"no run on more than {base.nodes} nodes reached its target")
    return base, ratios


def efficiencies(base: Series, ratios: Mapping[float, Estimate]) -> dict[float, Estimate]:
    """Return the efficiency by the node count. ratios: speed-ups over the base."""
    return {nodes: _scaled(ratio, base.nodes / nodes) for nodes, ratio in ratios.items()}


def _scaled(value: Estimate, factor: float) -> Estimate:
    ends = {name: getattr(value, name) * factor for name in ("median", "low", "high")}
    limits = {name: limit and _scaled(limit, factor) for name in ("above", "below") for limit in [getattr(value, name)]}
    return replace(value, **ends, **limits)


def _draw_speed_ups(axes: Axes, base: Series, ratios: Sequence[Line]) -> tuple[dict[str, Line2D], list[str]]:
    """Draw speed-ups over a base, and linear speed-up, in a panel; returns legend entries and notes."""
    if is_log("y", [1.0], by_default=True):
        axes.set_yscale("log", base=2)
    handles, notes = _draw_by_nodes(axes, ratios)
    axes.set_ylabel(f"speed-up over\n{textwrap.fill(base.label, 28)}")
    largest = max(nodes for _, ratio in ratios for nodes, r in ratio.items() if r.median > 0)
    counts = np.array([base.nodes, largest], dtype=float)
    (handles["linear"],) = axes.plot(counts, counts / base.nodes, color="#777777", linewidth=1.0, zorder=1.5)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    return handles, [*notes, f"speed-up: {PAIRED}"]


def _draw_by_nodes(axes: Axes, lines: Sequence[Line], unit: str = "") -> tuple[dict[str, Line2D], list[str]]:
    """Draw values by node count in a panel; returns legend entries and notes. unit: unit of the values."""
    if is_log("x", [1.0], by_default=True):
        axes.set_xscale("log", base=2)
    drawn = draw_estimates(axes, lines, unit)
    counts = sorted({nodes for _, value in lines for nodes in value})
    axes.set_xticks(counts, [str(nodes) for nodes in counts])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("nodes")
    points = [point for _, value in lines for point in value.values()]
    note = interval_note([point.count for point in points])
    notes = [f"medians over seeds; no bands with {MANY} lines or more" if len(lines) >= MANY else note] if note else []
    handles = {_legend(line): drawn[line.label] for line, _ in lines if line.label in drawn}
    return handles, [*notes, *[NOTE] * any(map(bound_of, points))]


def _legend(line: Series) -> str:
    counts = [n for n, runs in line.by_nodes.items() if any(time_to_target_s(run) is None for run in runs)]
    return f"{line.label} (not reached at {', '.join(map(str, counts))})" if counts else line.label
