"""Show how contenders scale: speed-up against nodes, and efficiency, the speed-up for each node that was added.

Efficiency is 1 where twice the nodes take half the time to the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from dsgd.report.contest import Contender
from dsgd.report.interval import Estimate
from dsgd.report.labels import Series
from dsgd.report.ratio import PAIRED
from dsgd.report.scaling import Base, Scaling, draw_by_nodes, draw_speed_ups, speed_ups
from dsgd.report.setting import setting_text, whole_setting
from dsgd.report.sheet import panels
from dsgd.report.style import drawing, finish, save
from dsgd.report.table_layout import Cell, ReportTable, exact
from dsgd.safe_text import for_terminal


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
