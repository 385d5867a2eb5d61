"""Draw which bandwidth each method needs, against the share of the time in which its workers compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from matplotlib.figure import Figure

from dsgd.report.sheet import label_decades, panels
from dsgd.report.style import add_legend, annotate, named_styles


def need_figure(points: Sequence[tuple[str, float, float]], setting: str) -> Figure:
    """Draw a line for each method.

    points: (method, per cent of the time, bit/s), infinite if no bandwidth is enough, grouped by method. setting: text
    below the figure."""
    by_method = {method: list(of_method) for method, of_method in groupby(points, key=lambda point: point[0])}
    names = list(by_method)
    algorithms = [name.split()[0] for name in names]
    variants = [algorithms[:number].count(algorithm) for number, algorithm in enumerate(algorithms)]
    figure, (axes,) = panels(1)
    handles = {}
    for name, style in zip(names, named_styles(algorithms, names, variants), strict=True):
        known = [(percent, rate / 1e9) for _, percent, rate in by_method[name] if math.isfinite(rate)]
        (handles[name],) = axes.plot(*zip(*known, strict=True), **style) if known else axes.plot([], [], **style)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    label_decades(axes.yaxis, high / low)
    axes.set_xlabel("time in which workers compute (%)")
    axes.set_ylabel("smallest bandwidth of a node (Gbit/s)")
    return annotate(figure, [], [setting], add_legend(figure, handles))
