"""Style and save figures: curves that differ in grey too, and the same bytes whenever redrawn."""

from __future__ import annotations

import io
import re
import string
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import matplotlib.style
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Tick
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text

from dsgd.record.reader import Run
from dsgd.record.safe_files import write_atomically
from dsgd.record.safe_text import counted, for_terminal, lines_for_terminal
from dsgd.report.fields import LABELS
from dsgd.report.labels import Series, time_notes
from dsgd.report.look import SCREEN, WIDE, WIDTHS, Look
from dsgd.report.setting import setting_text
from dsgd.report.sheet import letter_inches, logarithmic, wrapped

# The colours of the first six have a lightness L* of 0, 27, 38, 53, 61 and 72: neighbours differ when printed in grey.
# An algorithm has the same colour in every figure; users' algorithms come after ours.
_ALGORITHMS = (
    "sync", "easgd", "downpour", "gossip", "dpsgd", "delayfree", "adpsgd", "diloco", "localsgd", "sgp", "choco",
    "relay", "compressed", "corrected", "noloco", "streaming", "sparta", "asyncdiloco", "decoupled",
    "gasloc",
)  # fmt: skip
_COLOURS = (
    "#000000", "#c77cae", "#0b3c8c", "#e69f1a", "#b2182b", "#1f8f5f", "#56b4e9", "#7a5230", "#3c6fd8", "#5b2d8e",
    "#d55e00", "#009e9e", "#8a8f00", "#4a4a4a", "#e07a86", "#9c8ad8",
)  # fmt: skip
_LINES = ("solid", (0, (5, 2)), (0, (1, 1.3)), (0, (6, 2, 1, 2)), (0, (3, 1.5, 1, 1.5, 1, 1.5)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "p", "h")

_METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}
_captioned: ContextVar[bool] = ContextVar("captions stand in the figures", default=True)
_beside: WeakKeyDictionary[Figure, list[str]] = WeakKeyDictionary()  # captions that do not


class NoData(ValueError):
    """Names the missing data of a figure for which no run has data."""


def styled(gathered: Sequence[Series]) -> list[Series]:
    """Return series with their styles: the colour belongs to the algorithm, the line style to the other differences.

    A series of several algorithms has its own colour. The marker follows from both, so that 60 series of six algorithms
    are distinct, also in grey."""
    owners = [group.label if len({run.algorithm for run in group.runs}) > 1 else group.algorithm for group in gathered]
    known = list(dict.fromkeys([*_ALGORITHMS, *owners]))
    # the label without the algorithm
    rests = [
        "" if owner == group.label else group.label.removeprefix(group.algorithm).removeprefix(", ")
        for group, owner in zip(gathered, owners, strict=True)
    ]
    variants = list(dict.fromkeys(rests))
    return [
        replace(group, style=curve_style(known.index(owner), variants.index(variant)))
        for group, owner, variant in zip(gathered, owners, rests, strict=True)
    ]


def named_styles(algorithms: Sequence[str], variants: Sequence[str], lines: Sequence[int]) -> list[dict[str, Any]]:
    """Return a style for each curve: the colour is its algorithm's, the line style belongs to its value of `lines`, the
    smallest solid, and the marker distinguishes the variants of an algorithm."""
    known, values = list(dict.fromkeys([*_ALGORITHMS, *algorithms])), sorted({*lines})
    pairs = sorted({*zip(algorithms, variants, strict=True)})
    styles = []
    for algorithm, variant, line in zip(algorithms, variants, lines, strict=True):
        index = [other for owner, other in pairs if owner == algorithm].index(variant)
        marker = _MARKERS[(known.index(algorithm) + 5 * index) % len(_MARKERS)]
        styles.append(curve_style(known.index(algorithm), values.index(line)) | {"marker": marker})
    return styles


def curve_style(algorithm: int, variant: int) -> dict[str, Any]:
    """Return colour, line style and marker of the variant-th configuration of an algorithm."""
    return {
        "color": _COLOURS[algorithm % len(_COLOURS)],
        "linestyle": _LINES[variant % len(_LINES)],
        "marker": _MARKERS[(algorithm + 6 * (variant // len(_LINES))) % len(_MARKERS)],
    }


@contextmanager
def drawing(width: str = "wide", log: Collection[str] | None = None, captions: bool = True) -> Iterator[None]:
    """Draw with the settings of all figures, independent of the user's matplotlibrc. width: one of WIDTHS, or `screen`.
    log, captions: fields of `Look`."""
    page = SCREEN if width == "screen" else WIDTHS[width]
    sizes = {"figure.figsize": (page.inches, page.panel_inches), "font.size": page.points}
    sizes |= {"lines.linewidth": 0.15 * page.points, "lines.markersize": 0.5 * page.points}
    token = _captioned.set(captions)
    try:
        with matplotlib.style.context(["default", "dsgd.report.figures", sizes]), logarithmic(log):
            yield
    finally:
        _captioned.reset(token)


def plot_band(axes: Axes, x: Any, middle: Any, low: Any, high: Any, **style: Any) -> Line2D:
    """Draw a curve, and the interval from low to high as a band about it; returns the curve."""
    (line,) = axes.plot(x, middle, markerfacecolor="white", **style)
    if not np.array_equal(low, high):
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.22, linewidth=0)
    return line


def finish(figure: Figure, runs: Sequence[Run], handles: Mapping[str, Artist], notes: Sequence[str] = ()) -> Figure:
    """Add the legend below the panels, if it has entries to distinguish, and the texts of `annotate`."""
    legend = None
    if len(handles) > 1 or any(run.outcome != "completed" for run in runs):
        legend = add_legend(figure, handles)
    return annotate(figure, runs, notes, legend)


def add_legend(figure: Figure, handles: Mapping[str, Artist]) -> Legend:
    """Add a legend with these entries below the panels, in as many columns as there is room for."""
    letter = letter_inches()
    room = int(figure.get_figwidth() / letter)
    texts = [wrapped(text, min(42, room - 12)) for text in handles]
    longest = max(len(line) for text in texts for line in text.split("\n"))
    columns = max(1, min(len(texts), room // (longest + 10)))
    rows = -(-len(texts) // columns)
    lines = max(sum(text.count("\n") + 1 for text in texts[i * rows : (i + 1) * rows]) for i in range(columns))
    figure.set_figheight(figure.get_figheight() + letter * (2.2 * lines + rows + 2))
    return figure.legend(list(handles.values()), texts, loc="outside lower center", ncols=columns)


def annotate(
    figure: Figure,
    runs: Sequence[Run],
    notes: Sequence[str] = (),
    legend: Legend | None = None,
    lettered: Sequence[Axes] | None = None,
) -> Figure:
    """Letter several panels, write the common configuration of the runs above them, and notes and setting of the runs
    below.

    legend: legend below the panels, if any; it gets the notes as its heading, notes on time models first. lettered: the
    panels that get a letter; None: all."""
    letter = letter_inches()
    room = int(figure.get_figwidth() / letter)
    lettered = figure.axes if lettered is None else lettered
    if len(lettered) > 1:
        for name, axes in zip(string.ascii_lowercase, lettered, strict=False):
            title = axes.get_title() or axes.get_title("left")
            axes.set_title(f"({name}) {title}".strip(), loc="left", fontsize="medium")
            axes.set_title("")
    below = [*time_notes(runs), *notes, setting_text(runs)]
    if not _captioned.get():
        return _write_below(figure, legend, [common(runs), *below], room)
    if title := textwrap.fill(common(runs), room - 4):
        figure.suptitle(title, fontsize="medium", x=0.01, ha="left")
    return _write_below(figure, legend, below, int(1.15 * room) - 4, title.count("\n"))


def add_setting(figure: Figure, runs: Sequence[Run]) -> Figure:
    """Write the setting of some runs below a finished figure, behind its notes."""
    columns = int(1.15 * figure.get_figwidth() / letter_inches()) - 4
    return _write_below(figure, figure.legends[0] if figure.legends else None, [setting_text(runs)], columns)


def _write_below(figure: Figure, legend: Legend | None, notes: Sequence[str], columns: int, higher: int = 0) -> Figure:
    """Write notes below the panels, after earlier ones: as the heading of the legend, if there is one.

    columns: letters of a line. higher: further lines by which the figure grows. Without captions the notes are kept for
    the file next to the figure."""
    if not _captioned.get():
        _beside.setdefault(figure, []).extend(note for note in notes if note)
        return figure
    lines = [line for note in notes if note for line in textwrap.wrap(note, columns)]
    figure.set_figheight(figure.get_figheight() + 2.2 * letter_inches() * (len(lines) + higher))
    before = figure.get_supxlabel() if legend is None else legend.get_title().get_text()
    if lines and legend is not None:
        legend.set_title("\n".join([*[before] * bool(before), *lines]), prop=FontProperties(size="small"))
    elif lines:
        figure.supxlabel("\n".join([*[before] * bool(before), *lines]), fontsize="small", color="#333333")
    return figure


def common(runs: Sequence[Run]) -> str:
    """Return the common configuration of all runs as a title: `gossip, mlp on digits, 8 nodes, batch size 16 per
    node`."""

    def shared(values: Sequence[object]) -> Any:
        return values[0] if len(set(values)) == 1 else None

    model, data = shared([run.chosen("model") for run in runs]), shared([run.chosen("data") for run in runs])
    nodes, batch = shared([run.nodes for run in runs]), shared([run.setting("batch_size") for run in runs])
    parts = [shared([run.chosen("algo") for run in runs]), " on ".join(part for part in (model, data) if part)]
    parts += [counted(nodes, "node")] if nodes else []
    parts += [f"batch size {batch} per node"] if batch else []
    return ", ".join(part for part in parts if part)


def svg_text(figure: Figure) -> str:
    """Return the figure as an SVG document."""
    _make_safe(figure)
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata=_METADATA["svg"])
    return file.getvalue()


_MATHEMATICS = re.compile(
    "|".join(re.escape(piece) for label in LABELS.values() for piece in re.findall(r"\$.+\$", label))
)


def _make_safe(figure: Figure) -> None:
    """Show every text literally: names out of records are not mathematics, and have no control characters. Numbers at
    ticks are matplotlib's."""
    ticks = {id(label) for tick in figure.findobj(Tick) for label in tick.findobj(Artist)}
    for text in figure.findobj(Text):
        if isinstance(text, Text) and id(text) not in ticks:
            text.set_text(lines_for_terminal(text.get_text()))
            text.set_parse_math("$" not in _MATHEMATICS.sub("", text.get_text()))


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the path's suffix, without dates or versions: redrawn, the same bytes."""
    kind = path.suffix.removeprefix(".")
    _make_safe(figure)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=kind, metadata=_METADATA[kind])
    write_atomically(path, drawn.getvalue())


def write_figure(make: Callable[[], Figure], stem: Path, look: Look = WIDE, text: str = "") -> list[Path]:
    """Draw a figure and write it as `<stem>.<format>` in each format, and as `<stem>.txt` the text, and the caption if
    it is not in the figure. Returns the paths.

    Raises NoData before anything is written, OSError for files that cannot be written."""
    with drawing(look.width, look.log, look.captions):
        figure = make()
        paths = [stem.parent / f"{stem.name}.{kind}" for kind in look.formats]
        for path in paths:
            save(figure, path)
    if lines := dict.fromkeys([*text.splitlines(), *_beside.pop(figure, [])]):
        paths.append(stem.parent / f"{stem.name}.txt")
        write_atomically(paths[-1], "".join(f"{for_terminal(line)}\n" for line in lines).encode())
    return paths
