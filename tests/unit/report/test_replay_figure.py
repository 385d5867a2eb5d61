"""The figure of a replay shows the numbers that it is given, in their order and colours."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from dsgd.report.replay_figure import KINDS, MOST_WORKERS, Timeline, replay_figure
from dsgd.report.style import drawing

BARS = [
    ("sync", {"compute": 3600.0, "communication": 7200.0, "waiting": 1800.0, "host": 900.0}),
    ("diloco tau=30", {"compute": 3600.0, "communication": 0.0, "waiting": 1800.0}),
]
ROW = {"compute": [(0.0, 0.1), (0.2, 0.3)], "communication": [(0.1, 0.15)], "waiting": [(0.15, 0.2)]}


def spans_of(axes: Axes) -> list[tuple[str, float, float, float]]:
    """Return colour, row, begin and end of what a timeline shows."""
    found = []
    for collection in axes.collections:
        assert isinstance(collection, PolyCollection)
        for path in collection.get_paths():
            (left, low), (right, high) = path.get_extents().get_points()
            red, green, blue, *_ = np.ravel(collection.get_facecolor())
            found.append((to_hex((red, green, blue)), round((low + high) / 2), round(left, 6), round(right, 6)))
    return sorted(found)


def test_bars_are_as_long_as_the_times_and_end_with_their_sum() -> None:
    with drawing():
        figure = replay_figure(BARS, [], "8 nodes")
    (axes,) = figure.axes
    bars = [(to_hex(bar.get_facecolor()), bar.get_x(), bar.get_width()) for bar in axes.patches if bar.get_width()]  # pyright: ignore[reportAttributeAccessIssue]
    colours = {kind: colour for kind, (_, colour) in KINDS.items()}
    sync = [(colours["compute"], 0, 1), (colours["communication"], 1, 2), (colours["waiting"], 3, 0.5)]
    assert bars == [
        *sync, (colours["host"], 3.5, 0.25), (colours["compute"], 0, 1), (colours["waiting"], 1, 0.5)
    ]  # fmt: skip
    assert [text.get_text() for text in axes.texts] == ["3.75 h", "1.5 h"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["sync", "diloco tau=30"]
    assert axes.get_xlabel() == "time of all steps (h)"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [name for name, _ in KINDS.values()]


def test_traced_steps_are_beside_the_predicted_ones_on_one_scale() -> None:
    later = {"compute": [(0.0, 0.2)], "host": [(0.2, 0.4)]}
    timelines: list[Timeline] = [("predicted", [("worker 0", ROW), ("worker 1", {})]), ("traced", [("rank 0", later)])]
    with drawing():
        figure = replay_figure(BARS[1:], timelines, "8 nodes")
    bars, predicted, traced = figure.axes
    colours = {kind: colour for kind, (_, colour) in KINDS.items()}
    assert spans_of(predicted) == sorted(
        (colours[kind], 0, 1e3 * begin, 1e3 * end) for kind, spans in ROW.items() for begin, end in spans
    )
    assert spans_of(traced) == sorted([(colours["compute"], 0, 0, 200), (colours["host"], 0, 200, 400)])
    assert predicted.get_xlim() == traced.get_xlim() == (0, pytest.approx(404))
    assert predicted.get_position().x1 < traced.get_position().x0
    assert bars.get_position().y0 > predicted.get_position().y1
    assert [name for name, _ in KINDS.values()] == [text.get_text() for text in figure.legends[0].get_texts()]


def test_of_many_workers_the_first_are_shown_and_counted() -> None:
    rows = [(f"worker {rank}", ROW) for rank in range(40)]
    with drawing():
        figure = replay_figure(BARS, [("2 steps", rows)], "40 nodes")
    assert len(figure.axes[1].get_yticks()) == MOST_WORKERS
    assert f"the first {MOST_WORKERS} of 40 workers" in figure.legends[0].get_title().get_text()
