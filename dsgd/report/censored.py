"""Mark what was not reached: a hollow arrow where the run ended, and the limit that this sets, like `> 40 s`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dsgd.record.reader import Run, number

NOTE = "hollow arrows: not reached within the time that is said"
ENDED_BADLY = ("diverged", "collapsed", "failed")  # a longer budget would not have helped


def limit_s(runs: Iterable[Run]) -> float:
    """Return the seconds within which none of these runs got there: the end of the one that ended first; NaN where
    that says nothing, as of a run that diverged."""
    runs = list(runs)
    ends = [number(run.final("time_s")) for run in runs]
    badly = any(run.outcome in ENDED_BADLY for run in runs)
    return math.nan if badly or not ends or any(map(math.isnan, ends)) else min(ends)


def limit_text(limit: float, sign: str = ">", unit: str = " s") -> str:
    """Return `> 40 s`; empty without a limit."""
    return f"{sign} {limit:.3g}{unit}" if math.isfinite(limit) else ""


def draw_censored(axes: Axes, x: float, y: float, towards: str, **style: Any) -> Line2D:
    """Draw the hollow arrow of a value that lies beyond a place. towards: where, one of `>`, `^` and `v`."""
    look = {"markerfacecolor": "white", "markeredgewidth": 1.2, "linestyle": "", "clip_on": False, "zorder": 4} | style
    (mark,) = axes.plot([x], [y], marker=towards, **look)
    return mark


def draw_limits(axes: Axes, limits: Sequence[tuple[float, float, str]], unit: str = "", upper: bool = False) -> None:
    """Draw hollow arrows at limits, and say each. limits: x, y and colour; of those at one place the later is around
    the earlier, so that both are seen. upper: the values lie below."""
    towards, sign = ("v", "<") if upper else ("^", ">")
    points = float(matplotlib.rcParams["lines.markersize"])
    count: Counter[tuple[float, str]] = Counter()
    for x, y, colour in limits:
        place = (x, limit_text(y, sign, unit))
        nested = count[place]
        size = points * (1 + 0.9 * nested)
        draw_censored(axes, x, y, towards, color=colour, markersize=size, zorder=4 - 0.1 * nested)
        count[place] += 1
        if not nested:
            axes.annotate(
                place[1], (x, y), (0, 1.4 * points), textcoords="offset points", ha="center", fontsize="small"
            )
