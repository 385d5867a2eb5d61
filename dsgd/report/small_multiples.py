"""Draw many curves in small panels with common axes: each curve with its band, before the medians of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from dsgd.report.curves import XAxis, draw_median_curves, median_curves
from dsgd.report.labels import Series, status_note
from dsgd.report.sheet import letter_inches, wrapped

COLUMNS = 3
LINES = 14  # the height of a panel in letters' widths
NOTE = "grey: the medians of the others"


def multiples_height(count: int) -> float:
    """Return the inches that so many panels need."""
    return letter_inches() * (LINES * -(-count // COLUMNS) + 8)


def draw_multiples(
    figure: SubFigure, gathered: Sequence[Series], axis: XAxis, field: str, styles: Sequence[dict[str, Any]]
) -> list[Axes]:
    """Draw a field in a panel for each series, in their order, with one pair of labels; returns the panels.

    styles: one for each series."""
    curves = median_curves(gathered, axis, field)
    rows = -(-len(curves) // COLUMNS)
    grid = list(figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False).flat)
    panels, unused = grid[: len(curves)], grid[len(curves) :]
    for axes in unused:
        axes.remove()
    for axes in panels[-COLUMNS:]:
        axes.tick_params(labelbottom=True)  # also where the place below is empty
    columns = max(8, int(0.9 * figure.bbox.width / figure.dpi / COLUMNS / letter_inches()))
    for axes, i in zip(panels, curves, strict=True):
        draw_median_curves(axes, gathered, curves, axis, field, styles, focus=i)
        title = wrapped(gathered[i].label + status_note(gathered[i].runs), columns)
        axes.set_title(title, loc="left", fontsize="medium")
        axes.tick_params(labelsize="small")
    figure.supxlabel(panels[0].get_xlabel().replace("\n", " "), fontsize="medium")
    figure.supylabel(panels[0].get_ylabel(), fontsize="medium")
    for axes in panels:
        axes.set(xlabel="", ylabel="")
    return panels
