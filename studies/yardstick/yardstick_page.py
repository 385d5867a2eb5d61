"""Write the page of the yardstick: what was measured elsewhere beside what the simulator predicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from dsgd.record.safe_files import write_atomically
from dsgd.report.sheet import panels
from dsgd.report.style import add_legend, annotate, curve_style, drawing, save
from studies.reproduction.archive import reading
from studies.reproduction.overview import OVERVIEW
from studies.reproduction.pages import table, write_page
from studies.yardstick.measured_table import EXPLAINED, MeasuredRow, MeasuredTable, error, grid_steps, percentile

FIGURE, PREDICTED = "predicted.png", "predicted.json"
SHARES = {"median": 0.5, "90th percentile": 0.9, "worst": 1.0}

INTRODUCTION = """# The yardstick: times that others measured

Published measurements of training and its communication, each row beside what the simulator predicts for it. Every
prediction is a run of `dsgd-run` without gradients, whose command is in [predicted.json](predicted.json).
`dsgd-reproduce yardstick` makes all of them and this page. What the model has and lacks:
[docs/explanation/network.md](../../docs/explanation/network.md). Others keep about 170
further rows apart and predict them once."""
READ = """\
Three of these were read from a measured row, which is no row here for that: PCIe's 51 Gbit/s and TCP's 21.5 Gbit/s of
the GPUs of 2020, and the jitter of 1.7 % of PyTorch's benchmark."""

Predictions = Mapping[str, Sequence[float]]  # of each table, by its key, row by row


def read(results: Path, tables: Sequence[MeasuredTable]) -> Predictions | None:
    """Return what was predicted before, None if that is not of these tables. Raises ValueError for a broken file."""
    path = results / PREDICTED
    if not path.exists():
        return None
    commands = [row.command for benchmark in tables for row in benchmark.rows]
    with reading(path):
        rows = json.loads(path.read_text(encoding="utf-8"))
        if [row["command"] for row in rows] != commands:
            return None
        values = iter([float(row["predicted"]) for row in rows])
    return {benchmark.key: [next(values) for _ in benchmark.rows] for benchmark in tables}


def write(results: Path, tables: Sequence[MeasuredTable], predictions: Predictions) -> str:
    """Write page, figure and predictions into an existing folder. Returns the result in one line."""
    pairs = {each.key: list(zip(each.rows, predictions[each.key], strict=True)) for each in tables}
    rows = [
        {"table": key, "row": row.name, "measured": row.measured, "predicted": value, "command": row.command}
        for key, of_table in pairs.items()
        for row, value in of_table
    ]
    write_atomically(results / PREDICTED, ("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n").encode())
    with drawing("double", log=("x", "y")):
        save(_figure(tables, predictions), results / FIGURE)
    all_pairs = [pair for each in tables if each.kind == "measured" for pair in pairs[each.key]]
    errors = [error(row.measured, value) for row, value in all_pairs]
    shares = ", ".join(f"{name} {percentile(errors, share):.1%}" for name, share in SHARES.items())
    score = f"{len(errors)} rows: relative error {shares}"
    constants = [constant for benchmark in tables for constant in benchmark.fitted]
    overview: dict[str, list[list[str]]] = {"measured": [], "simulated": [], "apart": []}
    for each in tables:
        overview[each.kind].append([f"[{each.title}](#{each.key})", *_row_of(each.kind, pairs[each.key])])
    columns = ["table", "rows", *SHARES, f"above {EXPLAINED:.0%}"]
    parts = [
        INTRODUCTION,
        f"**{score}.**",
        f"![predicted against measured]({FIGURE})",
        table(columns, [*overview["measured"], ["all", *_row_of("measured", all_pairs)]]),
        "What others simulated is judged in steps of their own grid of bandwidths, each 21% above the one before.",
        table(["table", "rows", "same", "within a step", "within two"], overview["simulated"]),
        "Apart, and in none of these numbers, are tables whose sources refute them; each says why.",
        table(columns, overview["apart"]),
        "## Fitted constants",
        f"{len(constants)}, all named here; every other number is the source's, a standard's, or called assumed.",
        READ,
        table(["constant", "value", "fitted on", "why"], [list(vars(each).values()) for each in constants]),
        *(part for benchmark in tables for part in _section(benchmark, pairs[benchmark.key])),
    ]
    write_page(results / OVERVIEW, parts)
    return score


def _section(benchmark: MeasuredTable, pairs: Sequence[tuple[MeasuredRow, float]]) -> list[str]:
    """Return the parts of the section of a table: where it is from, what was given, row by row."""
    reasons: list[str] = []
    lines, measure = [], "steps" if benchmark.kind == "simulated" else "error"
    for row, value in pairs:
        wrong = error(row.measured, value)
        note = ""
        if abs(wrong) > EXPLAINED and measure == "error":
            if row.reason and row.reason not in reasons:
                reasons.append(row.reason)
            note = f"({reasons.index(row.reason) + 1})" if row.reason else "" if benchmark.apart else "unexplained"
        off = f"{wrong:+.1%}" if measure == "error" else f"{grid_steps(row.measured, value):+d}"
        lines.append([row.name, f"{row.measured:g}", f"{value:.4g}", off, note])
    return [
        f'<a id="{benchmark.key}"></a>\n\n## {benchmark.title}',
        f"{benchmark.source}.",
        f"Given: {benchmark.given}",
        f"Left out: {benchmark.left_out}" if benchmark.left_out else "",
        f"Apart: {benchmark.apart}" if benchmark.apart else "",
        table(["row", f"measured ({benchmark.unit})", "predicted", measure, ""], lines),
        *(f"({number}) {reason}" for number, reason in enumerate(reasons, start=1)),
    ]


def _row_of(kind: str, pairs: Sequence[tuple[MeasuredRow, float]]) -> list[str]:
    if kind == "simulated":
        steps = [abs(grid_steps(row.measured, value)) for row, value in pairs]
        return [str(len(steps)), *(f"{sum(step <= most for step in steps) / len(steps):.0%}" for most in range(3))]
    errors = [error(row.measured, value) for row, value in pairs]
    above = sum(abs(value) > EXPLAINED for value in errors)
    return [str(len(errors)), *(f"{percentile(errors, share):.1%}" for share in SHARES.values()), str(above)]


def _figure(tables: Sequence[MeasuredTable], predictions: Predictions) -> Figure:
    """Draw what was predicted against what was measured, each in the unit of its table."""
    figure, (axes,) = panels(1)
    handles = {}
    for number, benchmark in enumerate(tables):
        measured = [row.measured for row in benchmark.rows]
        style: dict[str, Any] = curve_style(number, 0) | {"linestyle": "none"}
        (handles[benchmark.title],) = axes.plot(measured, predictions[benchmark.key], markersize=4, **style)
    everything = [row.measured for benchmark in tables for row in benchmark.rows]
    low, high = min(everything) / 2, max(everything) * 2
    for factor, dashes in ((1.0, "solid"), (1 + EXPLAINED, "dotted"), (1 - EXPLAINED, "dotted")):
        ends = [factor * low, factor * high]
        axes.plot([low, high], ends, color="#777777", linewidth=0.8, linestyle=dashes, zorder=0)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylabel="predicted")
    axes.set_xlabel("measured, in the unit of each table")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    notes = [f"solid: predicted as measured; dotted: {EXPLAINED:.0%} off"]
    return annotate(figure, [], notes, add_legend(figure, handles))
