"""Size figures for a page, arrange panels on them, and choose the logarithmic axes: axes whose values span a decade, or
axes that the user asks for.

A censored value, a target that was not reached when the runs ended, is marked by an arrow at its bound, which points to
the true value, and a text like `> 40 s`."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.ticker import AutoLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Affine2D, ScaledTranslation

from dsgd.report.interval import Estimate
from dsgd.report.look import SCREEN, WIDTHS


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
    for panel in axes[:count]:
        panel.xaxis.set_major_locator(RoomyLocator())
    return figure, axes[:count]


class RoomyLocator(AutoLocator):
    """Places ticks up to `most`, far enough apart that their labels do not overlap in the final figure."""

    def __init__(self, most: float = math.inf) -> None:
        super().__init__()
        self._most = most

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        """Return the places of the ticks between two values."""
        ticks, axis = np.asarray(super().tick_values(vmin, vmax)), self.axis
        assert isinstance(axis, Axis)
        figure = axis.axes.get_figure(root=True)
        assert figure is not None
        digit = 0.64 * letter_inches() / 0.54 * figure.dpi / axis.axes.bbox.width * (vmax - vmin)
        for fewer in range(6, 1, -1):
            if (max(len(f"{tick:.6g}") for tick in ticks) + 0.5) * digit <= ticks[1] - ticks[0]:
                break
            ticks = np.asarray(MaxNLocator(fewer, steps=[1, 2, 2.5, 5, 10]).tick_values(vmin, vmax))
        return [tick for tick in ticks if tick <= self._most]


def empty_figure(width: float, height: float) -> Figure:
    """Make a figure of this size in inches with an automatic layout."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(wspace=0.06, hspace=0.06))


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
    """Name horizontal bars, from the top; the figure gets the height that they need, with the label below them."""
    figure, part, spec = axes.get_figure(root=True), axes.get_figure(root=False), axes.get_subplotspec()
    assert figure is not None
    assert part is not None
    assert spec is not None
    grid = spec.get_gridspec()
    inches = part.bbox.width / figure.dpi / grid.ncols
    label = 2.4 * letter_inches() * (axes.get_xlabel().count("\n") + 3 * bool(axes.get_xlabel()))
    figure.set_figheight(max(figure.get_figheight(), grid.nrows * (rows_height(names, inches) + label)))
    axes.set_yticks(range(len(names)), _row_texts(names, inches))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _row_texts(names: Sequence[str], inches: float) -> list[str]:
    return [wrapped(name, max(10, int(0.36 * inches / letter_inches()))) for name in names]


DECADE = 10.0  # ratio of the largest to the smallest value from which an axis is logarithmic

_chosen: ContextVar[Collection[str] | None] = ContextVar("logarithmic axes", default=None)


@contextmanager
def logarithmic(axes: Collection[str] | None) -> Iterator[None]:
    """Make these of AXES logarithmic inside of the block, and no others; None: by the values."""
    token = _chosen.set(axes)
    try:
        yield
    finally:
        _chosen.reset(token)


def is_log(axis: str, values: Any, by_default: bool | None = None) -> bool:
    """Check that an axis with these values is logarithmic. by_default: choice unless the user decides; None: by the
    values."""
    array = np.asarray(values, dtype=float)
    if not (array > 0).any():
        return False
    chosen = _chosen.get()
    if chosen is not None:
        return axis in chosen
    return wants_log(array) if by_default is None else by_default


def wants_log(values: Any, span: float = DECADE) -> bool:
    """Check that values are not negative and span a decade, or another ratio; zeros are omitted."""
    array = np.asarray(values, dtype=float)
    positive = array[(array > 0) & np.isfinite(array)]
    return bool(len(positive) and not (array < 0).any() and positive.max() >= span * positive.min())


def scale_log(axes: Axes, axis: str, values: Any, by_default: bool | None = None) -> bool:
    """Make one of AXES logarithmic, and label it, if `is_log` says so; returns whether."""
    array = np.asarray(values, dtype=float)
    if logs := is_log(axis, array, by_default):
        axes.set(**{f"{axis}scale": "log"})
        label_decades(axes.xaxis if axis == "x" else axes.yaxis, float(array.max() / array[array > 0].min()))
    return logs


def label_decades(axis: Axis, span: float) -> None:
    """Label a logarithmic axis with plain numbers, also within the decades if there are few.

    span: ratio of the largest to the smallest value."""
    within = LogLocator(subs=(1.0,) if span > 300 else (1.0, 2.0, 5.0))
    axis.set_major_locator(within if span > 3 else MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


NOTE = "arrows: target not reached, the value lies beyond"
NEAR = 0.2  # relative distance of two limits that have one text
# of a value that lies beyond its place: a shaft with a head, unlike all markers of curves
_ARROW = Path([(0, 0), (2, 0), (1, 0.7), (2, 0), (1, -0.7)], [1, 2, 1, 2, 2])  # of 1 move to, of 2 draw to
_DEGREES = {">": 90, "<": -90}  # on a vertical axis


@dataclass(frozen=True)
class Bound:
    """Hold the bound of a censored value. sign: `>` if it exceeds the limit, `<` if it stays below."""

    limit: float
    sign: str

    def text(self, unit: str = "") -> str:
        """Return `> 40 s`."""
        return f"{self.sign} {self.limit:.3g}{unit}"


def bound_of(value: Estimate) -> Bound | None:
    """Return the bound of a censored median; None if it is a number, and without a bound, as for runs that diverged."""
    if math.isinf(value.median) and value.above is not None and 0 < value.above.median < math.inf:
        return Bound(value.above.median, ">")
    if value.median == 0 and value.below is not None and 0 < value.below.median < math.inf:
        return Bound(value.below.median, "<")
    return None


def is_missed(value: Estimate) -> bool:
    """Check that the median is of runs that missed the target: an infinite time, or a speed-up of 0, known or not."""
    return math.isinf(value.median) or (value.median == 0 and value.below is not None)


def draw_censored(axes: Axes, x: float, y: float, degrees: float = 0, **style: Any) -> Line2D:
    """Draw the arrow of a value beyond a point. degrees: direction, 0 to the right."""
    (mark,) = axes.plot([x], [y], clip_on=False, zorder=4, **arrow(degrees), **style)
    return mark


def arrow(degrees: float = 0) -> dict[str, Any]:
    """Return the style of an arrow that points to the right, rotated by `degrees`."""
    size, marker = 2.6 * float(matplotlib.rcParams["lines.markersize"]), Affine2D().rotate_deg(degrees)
    look = {"marker": marker.transform_path(_ARROW), "markersize": size, "markerfacecolor": "none"}
    return look | {"markeredgewidth": 1.2, "linestyle": ""}


def draw_limits(axes: Axes, limits: Sequence[tuple[float, Bound, str]], unit: str = "") -> None:
    """Draw arrows at limits on the vertical axis, at one x side by side, and label them, close ones once. limits: (x,
    bound, colour). unit: unit behind the number."""
    points, figure = float(matplotlib.rcParams["lines.markersize"]), axes.get_figure(root=True)
    assert figure is not None
    for x in dict.fromkeys(x for x, _, _ in limits):
        here = [(bound, colour) for at, bound, colour in limits if at == x]
        for i, (bound, colour) in enumerate(here):
            aside = ScaledTranslation(1.3 * points * (i - (len(here) - 1) / 2) / 72, 0, figure.dpi_scale_trans)
            mark = draw_censored(axes, x, bound.limit, _DEGREES[bound.sign], color=colour)
            mark.set_transform(axes.transData + aside)
        for near in _close([bound for bound, _ in here]):
            above = near[0].sign == "<"  # the text is on the side without an arrow
            least, most = near[0], near[-1]
            further = "" if most.text() == least.text() else f" to {most.limit:.3g}"
            at, offset = (x, (most if above else least).limit), (0, (0.6 if above else -0.6) * points)
            style: dict[str, Any] = {"va": "bottom" if above else "top", "ha": "center", "fontsize": "small"}
            axes.annotate(f"{least.text()}{further}{unit}", at, offset, textcoords="offset points", **style)


def _close(bounds: Sequence[Bound]) -> list[list[Bound]]:
    """Gather bounds whose texts would cover each other, ascending."""
    groups: list[list[Bound]] = []
    for bound in sorted(bounds, key=lambda bound: (bound.sign, bound.limit)):
        last = groups[-1][-1] if groups else None
        if last is not None and last.sign == bound.sign and math.isclose(last.limit, bound.limit, rel_tol=NEAR):
            groups[-1].append(bound)
        else:
            groups.append([bound])
    return groups
