"""Figures of papers can be read: names of places on a logarithmic axis do not run together."""

from __future__ import annotations

from itertools import pairwise

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from dsgd.report.style import drawing
from dsgd.reproduction.charts import ChartLine, ChartPanel, chart
from dsgd.reproduction.verdict import exactly


@pytest.mark.parametrize("places", [(0.333, 0.667, 1.25, 1.67, 2.0, 2.5, 5.0, 10.0), (8.0, 16.0, 32.0, 64.0, 100.0)])
def test_names_on_a_logarithmic_axis_do_not_overlap(places: tuple[float, ...]) -> None:
    line = ChartLine("all", "sync", [(x, exactly(x)) for x in places])
    with drawing("double"):
        figure = chart([ChartPanel("two", "x", "y", [line], log_x=True)] * 2)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        for axes in figure.axes:
            boxes = [label.get_window_extent(canvas.get_renderer()) for label in axes.get_xticklabels()]
            assert len(boxes) >= 5
            assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
