"""Size figures for a page, and arrange panels on them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine


@dataclass(frozen=True)
class Page:
    """The size of figures. inches: width. panel_inches: height of a panel. points: of letters.

    fixed: the figure has this width; else no more, and less where it has few panels."""

    inches: float
    panel_inches: float
    points: float
    fixed: bool


WIDTHS = {
    "single": Page(3.4, 2.3, 8, True),  # one column of a paper
    "double": Page(7.0, 2.3, 8, True),  # the whole width of its page
    "wide": Page(13.4, 3.5, 10, False),  # screens and slides
}
SCREEN = Page(4.8, 3.0, 9, True)  # a figure of a page for a browser, whose width it follows


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """Make panels in rows, as many in a row as the page has room for, on a figure of the page's width."""
    (width, height), letter = matplotlib.rcParams["figure.figsize"], letter_inches()
    rows = -(-count // max(1, min(4, int(width / (30 * letter)))))
    columns = -(-count // rows)
    if not any(page.fixed and page.inches == width for page in (*WIDTHS.values(), SCREEN)):
        width = min(width, 1.0 + 4.6 * columns)
    figure = empty_figure(width, rows * height)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def empty_figure(width: float, height: float) -> Figure:
    """Make a figure of this size in inches that lays out what is drawn on it."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(wspace=0.06, hspace=0.06))


def beside_or_below(names: Sequence[str], below: float) -> tuple[SubFigure, SubFigure, Figure]:
    """Make a figure of two parts, side by side, on a narrow page one below the other. names: of the rows in the first
    part. below: inches of the second one's height."""
    width = matplotlib.rcParams["figure.figsize"][0]
    narrow = width < 60 * letter_inches()
    above = rows_height(names, width if narrow else width / 2) + 5 * letter_inches()  # a title, two lines of a label
    height = above + below if narrow else max(above, below)
    figure = empty_figure(width, height)
    grid = figure.add_gridspec(2, 1, height_ratios=[above, below]) if narrow else figure.add_gridspec(1, 2)
    return figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1]), figure


def wrapped(text: str, columns: int = 42) -> str:
    """Break a label into lines."""
    return textwrap.fill(text, columns)


def letter_inches() -> float:
    """Return the mean width of a letter."""
    return 0.54 * float(matplotlib.rcParams["font.size"]) / 72


def rows_height(names: Sequence[str], inches: float) -> float:
    """Return the inches that named rows need in a panel of this width with its labels."""
    lines = max(text.count("\n") + 1 for text in _row_texts(names, inches))
    return letter_inches() * (2.6 * lines * len(names) + 8)


def name_bars(axes: Axes, names: Sequence[str]) -> None:
    """Name horizontal bars, from the top; the figure gets as high as they need."""
    figure, part, spec = axes.get_figure(root=True), axes.get_figure(root=False), axes.get_subplotspec()
    assert figure is not None
    assert part is not None
    assert spec is not None
    grid = spec.get_gridspec()
    inches = part.bbox.width / figure.dpi / grid.ncols
    figure.set_figheight(max(figure.get_figheight(), grid.nrows * rows_height(names, inches)))
    axes.set_yticks(range(len(names)), _row_texts(names, inches))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _row_texts(names: Sequence[str], inches: float) -> list[str]:
    return [wrapped(name, max(10, int(0.36 * inches / letter_inches()))) for name in names]
