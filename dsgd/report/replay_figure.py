"""Draw where the time of a job goes by each method, and what each worker does in some steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dsgd.report.sheet import empty_figure, panels, rows_height, wrapped
from dsgd.report.style import add_legend, annotate
from dsgd.report.units import duration

# kind of time: its name in the legend, and its colour; the lightness falls apart, for prints in grey
KINDS = {
    "compute": ("computing", "#0b3c8c"),
    "communication": ("exposed communication", "#e69f1a"),
    "waiting": ("waiting", "#d9d9d9"),
    "host": ("waiting for the host", "#b2182b"),
}
MOST_WORKERS = 16  # rows of a timeline

Bar = tuple[str, Mapping[str, float]]  # name of a method, and seconds by kind
WorkerRow = tuple[str, Mapping[str, Sequence[tuple[float, float]]]]  # name of a worker, and (begin, end) by kind
Timeline = tuple[str, Sequence[WorkerRow]]  # title, and rows; times in seconds from 0 on


def replay_figure(bars: Sequence[Bar], timelines: Sequence[Timeline], setting: str) -> Figure:
    """Draw a bar for each method, and below them timelines of workers side by side, on one scale.

    setting: text below the figure."""
    wide, _ = panels(2)
    width = wide.get_figwidth()
    shown = [(title, rows[:MOST_WORKERS]) for title, rows in timelines]
    methods = [wrapped(name, 24) for name, _ in bars]
    heights = [
        rows_height(methods, width),
        max((rows_height([row[0] for row in rows], width) for _, rows in shown), default=0),
    ]
    figure = empty_figure(width, sum(heights))
    grid = figure.add_gridspec(2 if shown else 1, max(1, len(shown)), height_ratios=heights if shown else None)
    upper = figure.add_subplot(grid[0, :])
    _draw_bars(upper, methods, [seconds for _, seconds in bars])
    longest_s = max(
        (span[1] for _, rows in shown for _, kinds in rows for spans in kinds.values() for span in spans), default=0
    )
    for column, (title, rows) in enumerate(shown):
        axes = figure.add_subplot(grid[1, column])
        axes.set_title(title)
        _draw_timeline(axes, rows, longest_s)
    drawn = {kind for _, seconds in bars for kind, time_s in seconds.items() if time_s > 0}
    drawn |= {kind for _, rows in shown for _, kinds in rows for kind, spans in kinds.items() if spans}
    handles: dict[str, Artist] = {
        name: Patch(facecolor=colour) for kind, (name, colour) in KINDS.items() if kind in drawn
    }
    most = max((len(rows) for _, rows in timelines), default=0)
    notes = [f"the first {MOST_WORKERS} of {most} workers"] if most > MOST_WORKERS else []
    return annotate(figure, [], [*notes, setting], add_legend(figure, handles))


def _draw_bars(axes: Axes, names: Sequence[str], bars: Sequence[Mapping[str, float]]) -> None:
    longest_s = max(sum(seconds.values()) for seconds in bars)
    unit, size = _unit(longest_s)
    for row, seconds in enumerate(bars):
        left = 0.0
        for kind, (_, colour) in KINDS.items():
            width = seconds.get(kind, 0.0) / size
            axes.barh(row, width, left=left, height=0.66, color=colour)
            left += width
        axes.annotate(duration(left * size), (left, row), (4, 0), textcoords="offset points", va="center")
    axes.set_xlim(0, 1.1 * longest_s / size)
    _name_rows(axes, names)
    axes.set_xlabel(f"time of all steps ({unit})")


def _draw_timeline(axes: Axes, rows: Sequence[WorkerRow], longest_s: float) -> None:
    unit, size = _unit(longest_s)
    for number, (_, by_kind) in enumerate(rows):
        for kind, (_, colour) in KINDS.items():
            widths = [(begin / size, (end - begin) / size) for begin, end in by_kind.get(kind, ())]
            axes.broken_barh(widths, (number - 0.4, 0.8), facecolors=colour, linewidth=0)
    _name_rows(axes, [name for name, _ in rows])
    axes.set_xlim(0, 1.01 * longest_s / size)
    axes.set_xlabel(f"time ({unit})")


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _unit(longest_s: float) -> tuple[str, float]:
    """Return the unit of an axis of time, and its size in seconds."""
    units = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
    return next((each for each in units if longest_s >= 2 * each[1]), ("ms", 1e-3))
