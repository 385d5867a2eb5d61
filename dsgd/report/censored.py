"""Draw what is censored, a target that was not reached when the runs ended, with a mark of its own: an open triangle at
the number that is all there is to know, which points to where the true one lies."""

from __future__ import annotations

import math
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dsgd.report.interval import Estimate

LATER, SLOWER = "not reached: later than the mark", "not reached: below the mark"  # entries of a legend


def bound_of(value: Estimate) -> tuple[float, str] | None:
    """Return what the median is known to exceed, with LATER, or to stay below, with SLOWER; None where it is a number,
    and where nothing is known of it."""
    if math.isinf(value.median) and value.above is not None and 0 < value.above.median < math.inf:
        return value.above.median, LATER
    if value.median == 0 and value.below is not None and 0 < value.below.median < math.inf:
        return value.below.median, SLOWER
    return None


def draw_censored(axes: Axes, values: Mapping[float, Estimate], colour: str) -> dict[str, Line2D]:
    """Draw the censored ones of a line's points; returns entries of the legend. values: by their place."""
    handles: dict[str, Line2D] = {}
    for x, value in values.items():
        if (bound := bound_of(value)) is not None:
            height, text = bound
            marker = "^" if text == LATER else "v"
            plain = {"linestyle": "", "marker": marker, "markersize": 7, "markerfacecolor": "none"}
            axes.plot([x], [height], color=colour, **plain)
            handles[text] = Line2D([], [], color="#555555", **plain)
    return handles
