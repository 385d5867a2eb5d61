"""The figure of a comparison, by its data: rows, intervals, seeds, edges, styles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dsgd.comparison.comparison_figure import comparison_figure
from dsgd.comparison.contenders import Contender, rank_contenders
from dsgd.report.style import curve_style, drawing
from tests.support.arrows import direction
from tests.support.contenders import contender
from tests.support.each_row import each_row

INF = math.inf
NAMES = ("sync", "easgd", "downpour", "gossip", "dpsgd", "delayfree")


def panels(contenders: list[Contender], width: str = "wide") -> list[Axes]:
    """The panels of the figure, drawn without a warning."""
    with drawing(width):
        figure = comparison_figure(rank_contenders(contenders))
        FigureCanvasAgg(figure).draw()
    return figure.axes


def rows(axes: Axes) -> dict[int, list[Line2D]]:
    """The lines of each row: seeds, interval, arrow at the edge, median, as far as they are there."""
    found: dict[int, list[Line2D]] = {}
    for line in axes.lines:
        heights = {float(y) for y in np.asarray(line.get_ydata())}
        if heights:
            (height,) = heights
            found.setdefault(int(height), []).append(line)
    return found


def xs(line: Line2D) -> list[float]:
    return [float(x) for x in np.asarray(line.get_xdata())]


def test_a_row_has_its_seeds_interval_and_median_the_first_on_top():
    seconds = [20.0, 22.0, 24.0, 26.0, 21.0]
    left, right = panels([contender("sync", [40.0] * 5), contender("gossip", seconds)])
    assert [label.get_text() for label in left.get_yticklabels()] == ["gossip", "sync"]
    seeds, interval, median = rows(left)[0]
    assert xs(seeds) == pytest.approx(seconds)
    assert xs(interval) == pytest.approx([20, 26])
    assert xs(median) == pytest.approx([22])
    assert len(rows(left)[1]) == 2  # all seeds equal: no interval
    bottom, top = left.get_ylim()
    assert bottom > top
    assert left.get_xlim()[0] == 0
    assert left.get_xlabel() == "virtual time (s)\nto a test accuracy of 0.9"
    levels = [list(np.asarray(line.get_ydata())) for line in right.lines]
    assert [0.9, 0.9] in levels
    assert right.get_ylabel() == "test accuracy"


def test_who_misses_the_target_has_an_arrow_where_its_runs_ended():
    """A target that was missed is never a number of its own: neither 0 nor the budget."""
    late = contender("easgd", [30, INF, 30, INF, 30])
    lost = contender("gossip", [INF] * 5)
    bad = contender("dpsgd", [INF] * 5, status="diverged")
    left, _ = panels([contender("sync", [40.0] * 5), late, lost, bad])
    texts = {text.get_text().replace("\n", " "): text.xy for text in left.texts}  # pyright: ignore[reportAttributeAccessIssue]
    names = [label.get_text() for label in left.get_yticklabels()]
    assert texts == {
        "2 of 5 > 100 s": (1, names.index("easgd")),
        "> 100 s": (1, names.index("gossip")),
        "never (diverged)": (1, names.index("dpsgd")),
    }
    edge = left.get_xlim()[1]
    _, interval, arrow, median = rows(left)[names.index("easgd")]
    assert xs(interval)[1] == xs(arrow)[0] == 100 < edge
    assert (direction(arrow), direction(median)) == (">", "")
    assert xs(median) == pytest.approx([30])
    for name, place in (("gossip", 100), ("dpsgd", edge)):
        (arrow,) = rows(left)[names.index(name)]
        assert xs(arrow) == [place]


def test_from_six_contenders_on_each_has_a_panel_of_its_own_in_the_order_of_the_ranking():
    """No two bands share a panel: the others' medians are grey lines behind."""
    contenders = [contender(name, [30.0 - i, 32.0 - i]) for i, name in enumerate(NAMES)]
    left, *small = panels(contenders)
    titles = [(axes.get_title("left") or axes.get_title()).removeprefix("(b) ") for axes in small]
    assert titles == [label.get_text() for label in left.get_yticklabels()] == list(reversed(NAMES))
    for axes, name in zip(small, titles, strict=True):
        bands, lines = axes.collections, [line for line in axes.lines if len(line.get_xdata()) > 2]  # pyright: ignore
        assert len(bands) == 1
        assert len(lines) == len(NAMES)
        coloured = [line.get_color() for line in lines if line.get_color() != "#c4c4c4"]
        assert coloured == [curve_style(NAMES.index(name), 0)["color"]]
    assert len({axes.get_ylim() for axes in small}) == len({axes.get_xlim() for axes in small}) == 1
    figure = left.get_figure(root=True)
    assert isinstance(figure, Figure)
    assert not figure.legends
    assert "dashed: the target, 0.9" in figure.get_supxlabel().replace("\n", " ")


@each_row(("slow", "scale"), [(90.0, "linear"), (110.0, "log"), (9000.0, "log")])
def test_the_axes_of_time_are_logarithmic_from_a_factor_of_ten(slow: float, scale: str):
    left, right = panels([contender("sync", [slow] * 2), contender("gossip", [10.0] * 2)])
    assert (left.get_xscale(), right.get_xscale()) == (scale, scale)
    low, high = left.get_xlim()
    assert low < 10 < slow < high
