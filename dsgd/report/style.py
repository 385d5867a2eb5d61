"""Style and save figures: curves that differ in grey too, and the same bytes whenever redrawn."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from dsgd.record.reader import Run
from dsgd.report.labels import time_notes

PANEL_INCHES = (4.6, 3.5)

# Lightness L* of 0, 27, 38, 53, 61 and 72: neighbours in the legend differ when printed in grey.
_COLOURS = ("#000000", "#c77cae", "#0b3c8c", "#e69f1a", "#b2182b", "#1f8f5f")
_LINES = ("solid", (0, (5, 2)), (0, (1, 1.3)), (0, (6, 2, 1, 2)), (0, (3, 1.5, 1, 1.5, 1, 1.5)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "p", "h")

_SETTINGS: dict[str, Any] = {
    "text.parse_math": False,  # names of users' choices may hold a dollar
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 100,
    "font.size": 10,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 3.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "pdf.fonttype": 42,
    "savefig.dpi": 150,
    "svg.hashsalt": "dsgd",  # element ids would be random otherwise
}
_METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}


class NoData(ValueError):
    """Says what is missing for a figure for which no run has data."""


def curve_style(index: int) -> dict[str, Any]:
    """Return colour, line style and marker of the index-th curve; (line style, marker) repeats after 60 curves only."""
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "linestyle": _LINES[index % len(_LINES)],
        "marker": _MARKERS[index % len(_MARKERS)],
    }


@contextmanager
def drawing() -> Iterator[None]:
    """Draw with the settings of all figures, whatever the user's matplotlibrc says."""
    with matplotlib.style.context(["default", _SETTINGS]):
        yield


def panels(count: int, legend: Sequence[str] = ()) -> tuple[Figure, list[Axes]]:
    """Make a row of panels, with room for a legend with these entries beside them."""
    width, height = PANEL_INCHES
    width *= count
    if legend:
        lines = sum(wrapped(entry).count("\n") + 1 for entry in legend)
        width, height = width + 0.9 + text_inches(legend), max(height, 0.23 * lines + 0.6)
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(wspace=0.06))
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def wrapped(text: str) -> str:
    """Break a label into lines."""
    return textwrap.fill(text, 42)


def text_inches(labels: Iterable[str]) -> float:
    """Estimate the width of labels, each broken into lines."""
    return 0.075 * max(len(line) for label in labels for line in wrapped(label).split("\n"))


def plot_band(axes: Axes, index: int, x: Any, mean: Any, low: Any, high: Any, **style: Any) -> Line2D:
    """Draw a mean as the index-th curve, and the range from low to high as a band about it; returns the curve."""
    (line,) = axes.plot(x, mean, markerfacecolor="white", **curve_style(index), **style)
    if not np.array_equal(low, high):
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.22, linewidth=0)
    return line


def name_bars(axes: Axes, figure: Figure, names: Sequence[str]) -> None:
    """Name horizontal bars, from the top; the figure gets wider, so that the panel keeps its width."""
    axes.set_yticks(range(len(names)), [wrapped(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    figure.set_figwidth(figure.get_figwidth() + text_inches(names))


def finish(figure: Figure, runs: Sequence[Run], handles: Mapping[str, Artist], notes: Sequence[str] = ()) -> Figure:
    """Add the legend beside the panels, what the runs have in common above, and notes below."""
    if len(handles) > 1 or any(run.outcome != "completed" for run in runs):
        add_legend(figure, handles, below=False)
    return annotate(figure, runs, notes)


def add_legend(figure: Figure, handles: Mapping[str, Artist], below: bool, **options: Any) -> Legend:
    """Add a legend with these entries below the panels, or beside them."""
    place = "outside lower center" if below else "outside right upper"
    return figure.legend(list(handles.values()), [wrapped(text) for text in handles], loc=place, **options)


def annotate(figure: Figure, runs: Sequence[Run], notes: Sequence[str] = (), legend: Legend | None = None) -> Figure:
    """Write what the runs have in common above the panels and the notes, those on time models first, below.

    legend: below the panels, if there is one; it gets the notes as its heading."""
    figure.suptitle(textwrap.fill(common(runs), 60 * len(figure.axes)), fontsize=10, x=0.01, ha="left")
    columns = int(figure.get_figwidth() * 15)
    text = "\n".join(line for note in (*time_notes(runs), *notes) for line in textwrap.wrap(note, columns))
    if text and legend is not None:
        legend.set_title(text, prop=FontProperties(size=8))
    elif text:
        figure.supxlabel(text, fontsize=8, color="#333333")
    return figure


def common(runs: Sequence[Run]) -> str:
    """Say what all runs share, as a title: `gossip, mlp on digits, 8 nodes, batch size 16 per node`."""

    def shared(values: Sequence[object]) -> Any:
        return values[0] if len(set(values)) == 1 else None

    model, data = shared([run.chosen("model") for run in runs]), shared([run.chosen("data") for run in runs])
    nodes, batch = shared([run.nodes for run in runs]), shared([run.setting("batch_size") for run in runs])
    parts = [shared([run.chosen("algo") for run in runs]), " on ".join(part for part in (model, data) if part)]
    parts += [f"{nodes} node" + "s" * (nodes != 1)] if nodes else []
    parts += [f"batch size {batch} per node"] if batch else []
    return ", ".join(part for part in parts if part)


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the path's suffix, without dates or versions: redrawn, the same bytes."""
    kind = path.suffix.removeprefix(".")
    figure.savefig(path, format=kind, metadata=_METADATA[kind])
