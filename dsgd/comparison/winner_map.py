"""Map the winners over one or two keys: a what-if map, with the winner's lead in each cell, and its table."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from dsgd.comparison.contenders import Comparison
from dsgd.record.reader import Run
from dsgd.report.interval import NOTHING, PAIRED, Estimate
from dsgd.report.labels import in_order
from dsgd.report.look import WIDE, WIDTHS, Look
from dsgd.report.setting import setting_text, value_text, whole_setting
from dsgd.report.sheet import Bound, bound_of, panels, wrapped
from dsgd.report.style import add_legend, annotate, named_styles, write_figure
from dsgd.report.table_layout import Cell, ReportTable, exact
from dsgd.report.units import quantity

NOBODY = "nobody"
_EMPTY = "#cccccc"  # of a cell without a winner
_LETTER = 0.54 / 72  # inches of a letter per point
_SMALLEST = 4.5  # points of the letters in a cell


@dataclass(frozen=True)
class MapCell:
    """State the winner in one cell of a map. values: {key: value} of its one or two keys. winner, algo: name and
    algorithm of the winner, empty without one. ratio: ratio of the second's score to the winner's, infinite if all
    others missed the target.

    measured: False if one of the two was derived from other runs. bound: without a winner, the time within which no
    contender reached the target; None if unknown. by_cost: costs are compared."""

    values: Mapping[str, Any]
    winner: str
    algo: str
    ratio: Estimate
    measured: bool
    bound: Bound | None = None
    by_cost: bool = False

    @property
    def tie(self) -> bool:
        """Check that the winner is not distinguishable from the second."""
        return bool(self.winner) and not self.ratio.low > 1

    @property
    def lead(self) -> str:
        """Return `1.7×`, and `1.7× ○` if it is derived; `> 4×` if the second missed the target before its runs ended,
        `alone` if nothing is known of it; `> 40 s` without a winner."""
        ratio = self.ratio.median
        text = "" if math.isnan(ratio) else "alone" if math.isinf(ratio) else f"{ratio:.3g}×"
        if (bound := bound_of(self.ratio)) is not None:
            text = bound.text("×")
        if not self.winner:
            text = "" if self.bound is None else self.bound.text("" if self.by_cost else " s")
        return text if self.measured else f"{text} ○".strip()


def map_cell(values: Mapping[str, Any], comparison: Comparison, derived: Collection[str] = ()) -> MapCell:
    """Return the cell of a comparison. The second is a contender not distinguishable from the first, if any.

    derived: names of contenders with derived runs."""
    first, *others = comparison.standings
    by_cost = comparison.prices is not None
    if math.isinf(first.score.median):
        bounds = [bound for standing in comparison.standings if (bound := bound_of(standing.score)) is not None]
        soonest = min(bounds, key=lambda bound: bound.limit, default=None)
        return MapCell(values, "", "", NOTHING, not derived, soonest, by_cost)
    rivals = ([standing for standing in others if not standing.behind] or others)[:1]
    ratio = rivals[0].ratio if rivals else Estimate(math.inf, math.inf, math.inf, comparison.seeds)
    measured = not any(standing.name in derived for standing in [first, *rivals])
    return MapCell(values, first.name, first.contender.algorithm, ratio, measured, by_cost=by_cost)


def map_figure(cells: Sequence[MapCell], notes: Sequence[str] = ()) -> Figure:
    """Draw the map: the colour is the winner's algorithm, the text the winner and its lead over the second. Cells are
    hatched if the two are not distinguishable, cross-hatched without a winner, and have a ring if derived.

    Raises ValueError unless all cells have the same one or two keys, and different values."""
    x_key, y_key, places = _places(cells)
    columns = in_order(x for x, _ in places)
    rows = in_order(y for _, y in places)[::-1]  # the largest value on top, as on any axis
    figure, (axes,) = panels(1)
    across, up = quantity(x_key, columns), quantity(y_key, rows)
    beside = wrapped(up.label, 24)
    inches, points = _size(figure, len(columns), len(rows), beside.split("\n"))
    owners = sorted({cell.algo for cell in cells if cell.winner})
    styles = named_styles(owners, owners, [0] * len(owners))
    colours = {algo: style["color"] for algo, style in zip(owners, styles, strict=True)}
    for (x, y), cell in places.items():
        _draw_cell(axes, columns.index(x), rows.index(y), cell, colours.get(cell.algo, _EMPTY), inches, points)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.set_xticks(range(len(columns)), [wrapped(across.text(text), 12) for text in columns])
    axes.set_yticks(*([range(len(rows)), [wrapped(up.text(text), 12) for text in rows]] if y_key else [[]]))
    axes.set_xlabel(across.label)
    axes.set_ylabel(beside)
    return annotate(figure, [], [*_notes(cells), *notes], add_legend(figure, _legend(cells, colours)))


def map_table(cells: Sequence[MapCell], caption: str = "") -> ReportTable:
    """Return a row per cell of the map, in the order of its keys."""
    x_key, y_key, places = _places(cells)
    keys = [key for key in (x_key, y_key) if key]
    columns, lines = in_order(x for x, _ in places), in_order(y for _, y in places)
    ordered = [((x, y), places[x, y]) for y in lines for x in columns if (x, y) in places]
    shown_as = [quantity(x_key, columns), quantity(y_key, lines)][: len(keys)]
    heads = [*(axis.label for axis in shown_as), "winner", "second, times the winner's", "told apart", "cell"]
    rows: list[list[Cell]] = []
    described = ["winner", "algo", "ratio", "low", "high", "ratio_above", "distinguishable", "measured"]
    csv_rows: list[list[Any]] = [[*keys, *described]]
    for coordinates, cell in ordered:
        where, known = list(coordinates[: len(keys)]), not math.isnan(cell.ratio.median)
        apart = ("no" if cell.tie else "yes") if cell.winner else "-"
        kind = "measured" if cell.measured else "derived"
        shown_where = [axis.text(text) for axis, text in zip(shown_as, where, strict=True)]
        rows.append([*shown_where, cell.winner or NOBODY, cell.ratio if known else "-", apart, kind])
        bound = bound_of(cell.ratio)
        limit = math.nan if bound is None else bound.limit
        numbers = [exact(value) for value in (cell.ratio.median, cell.ratio.low, cell.ratio.high, limit)]
        csv_rows.append([*where, cell.winner, cell.algo, *numbers, apart, str(cell.measured).lower()])
    texts = frozenset({*heads[: len(keys)], "winner", "told apart", "cell"})
    return ReportTable(heads, texts, rows, csv_rows, caption, kept=len(keys) + 1)


def write_map(
    cells: Sequence[MapCell], stem: Path, look: Look = WIDE, notes: Sequence[str] = (), runs: Sequence[Run] = ()
) -> ReportTable:
    """Write the map as `<stem>` in each format, and its table as `.csv`, `.md`, `.tex` and, with the setting of the
    runs, `.setting.json`; returns the table to print.

    runs: runs of all cells. Raises ValueError as `map_figure` does, OSError for files that cannot be written."""
    notes = [*notes, *([setting_text(runs)] if runs else [])]
    table = replace(map_table(cells, "\n".join([*_notes(cells), *notes])), whole=whole_setting(runs))
    write_figure(lambda: map_figure(cells, notes), stem, look)
    table.write(stem)
    return table


def _places(cells: Sequence[MapCell]) -> tuple[str, str, dict[tuple[str, str], MapCell]]:
    """Return the keys, the second maybe empty, and the cells by the text of their values."""
    if not cells:
        raise ValueError("a map must have a cell, got none")
    keys = list(cells[0].values)
    if len(keys) not in (1, 2):
        raise ValueError(f"a map must have one or two keys, got {', '.join(keys) or 'none'}")
    places: dict[tuple[str, str], MapCell] = {}
    for cell in cells:
        if set(cell.values) != set(keys):
            raise ValueError(f"cells of a map must have the keys {', '.join(keys)}, got {', '.join(cell.values)}")
        x, *y = (value_text(cell.values[key]) for key in keys)
        coordinates = (x, y[0] if y else "")
        if coordinates in places:
            raise ValueError(f"cells of a map must have places that differ, got {', '.join([x, *y])} twice")
        places[coordinates] = cell
    return keys[0], keys[1] if len(keys) == 2 else "", places


def _size(figure: Figure, columns: int, rows: int, beside: Sequence[str]) -> tuple[float, float]:
    """Give the figure the size that its cells and the lines next to them need. Returns the approximate width of a cell,
    and the size of letters in points."""
    points = float(matplotlib.rcParams["font.size"])
    most = float(matplotlib.rcParams["figure.figsize"][0])
    fixed = any(page.fixed and page.inches == most for page in WIDTHS.values())
    letter = _LETTER * points
    labels, width = 10 * letter, (10 + 2.5 * (len(beside) - 1)) * letter
    figure.set_figwidth(most if fixed else min(most, max(5.0, width + columns * 18 * letter)))
    figure.set_figheight(max(rows * 6, max(map(len, beside)) + 1) * letter + labels)
    return (figure.get_figwidth() - width) / columns, points


def _draw_cell(axes: Axes, x: int, y: int, cell: MapCell, colour: str, inches: float, points: float) -> None:
    """Draw a cell; its letters shrink if the longest word does not fit. inches: its width."""
    hatch = "////" if cell.tie else None if cell.winner else "xxxx"
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5, hatch=hatch))
    name = cell.winner.replace(" node", "\N{NO-BREAK SPACE}node") or NOBODY
    longest = max(len(word) for word in [*name.split(" "), cell.lead])
    size = max(_SMALLEST, min(0.9 * points, 0.9 * inches / (longest * _LETTER)))
    text = "\n".join([wrapped(name, max(longest, int(0.9 * inches / (_LETTER * size)))), cell.lead]).strip()
    is_light = float(np.dot(to_rgb(colour), (0.299, 0.587, 0.114))) > 0.5
    ink = "#000000" if is_light else "#ffffff"
    behind = {"facecolor": colour, "edgecolor": "none", "pad": 1.0} if hatch else None
    axes.text(x, y, text, color=ink, ha="center", va="center", fontsize=size, bbox=behind, clip_on=True)


def _legend(cells: Sequence[MapCell], colours: Mapping[str, str]) -> dict[str, Artist]:
    handles: dict[str, Artist] = {algo: Rectangle((0, 0), 1, 1, facecolor=colour) for algo, colour in colours.items()}
    if not all(cell.winner for cell in cells):
        handles[NOBODY] = Rectangle((0, 0), 1, 1, facecolor=_EMPTY, edgecolor="white", hatch="xxxx")
    if any(cell.tie for cell in cells):
        handles["tie"] = Rectangle((0, 0), 1, 1, facecolor="#888888", edgecolor="white", hatch="////")
    if not all(cell.measured for cell in cells):
        handles["derived"] = Line2D([], [], linestyle="", marker="o", color="#000000", markerfacecolor="none")
    return handles


def _notes(cells: Sequence[MapCell]) -> list[str]:
    """Return one line on the meaning of the texts in cells."""
    compared, within = ("cost", "cost") if any(cell.by_cost for cell in cells) else ("time, or loss", "time")
    parts = [f"number: the second's {compared}, over the winner's, {PAIRED}"] * any(cell.winner for cell in cells)
    parts += [">: the second missed the target when its runs ended"] * any(bound_of(cell.ratio) for cell in cells)
    parts += ["tie: the two cannot be told apart"] * any(cell.tie for cell in cells)
    bounded = any(cell.bound is not None for cell in cells)
    parts += [f"nobody: the target was not reached within the {within} that is said"] * bounded
    parts += ["derived: the times of one of the two"] * (not all(cell.measured for cell in cells))
    return ["; ".join(parts)] if parts else []
