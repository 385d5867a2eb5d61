"""Find letters of a figure that cover others."""

from __future__ import annotations

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Return the pairs of texts that cover each other, of tick labels, labels, titles and what stands in the panels."""
    FigureCanvasAgg(figure).draw()
    texts: list[Text] = []
    for axes in figure.axes:
        low, high = sorted(axes.get_xlim())
        bottom, top = sorted(axes.get_ylim())
        texts += [t for t in axes.get_xticklabels() if low <= t.get_position()[0] <= high]
        texts += [t for t in axes.get_yticklabels() if bottom <= t.get_position()[1] <= top]
        titles = (axes.title, axes._left_title, axes._right_title)  # pyright: ignore
        texts += [*axes.texts, axes.xaxis.label, axes.yaxis.label, *titles]
    for legend in figure.legends:
        texts += [*legend.get_texts(), legend.get_title()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text() and text.get_visible()]
    return [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.padded(-1).overlaps(other.padded(-1))]
