"""Figures of papers can be read: nothing hides or invents a point, and lines can be told apart."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from dsgd.report.interval import Estimate
from dsgd.report.style import drawing
from studies.reproduction.chart_panels import CENSORED, ChartLine, ChartPanel, chart
from studies.reproduction.verdict import exactly
from tests.support.arrows import direction


def drawn(lines: list[ChartLine], log_x: bool = False) -> Figure:
    with drawing():
        return chart(ChartPanel("title", "x", "y", lines, log_x=log_x))


def test_a_logarithmic_axis_invents_no_start() -> None:
    """A mark at time 0 has no place on it."""
    line = ChartLine("sync", "sync", [(x, exactly(5.0 - x)) for x in (0.0, 1.0, 2.0)], markers=False)
    for log_x, places in ((True, [1.0, 2.0]), (False, [0.0, 1.0, 2.0])):
        assert np.array_equal(drawn([line], log_x).axes[0].lines[0].get_xdata(), places)


def test_a_censored_value_has_a_mark_of_its_own_in_the_legend() -> None:
    """Two at nearly one place are drawn side by side and named once."""
    limits = [Estimate(0.0, 0.0, 0.0, 3, below=exactly(limit)) for limit in (0.745, 0.744)]
    figure = drawn([ChartLine(str(i), "sync", [(1.0, limit)]) for i, limit in enumerate(limits)])
    marks = [line for line in figure.axes[0].lines if direction(line) == "v"]
    assert len({tuple(mark.get_transform().transform((1.0, 0.7))) for mark in marks}) == 2
    assert [text.get_text() for text in figure.axes[0].texts] == ["< 0.744 to 0.745"]
    assert CENSORED in [text.get_text() for text in figure.legends[0].get_texts()]
