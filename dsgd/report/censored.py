"""Mark what is censored, a target that was not reached when the runs ended: by a hollow arrow at the number that is all
there is to know, which points to where the true one lies, and a text like `> 40 s`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dsgd.report.interval import Estimate

NOTE = "hollow arrows: target not reached, the value lies beyond"
NEAR = 0.01  # relative distance of two limits whose arrows cover each other
_TOWARDS = {">": "^", "<": "v"}  # on a vertical axis


@dataclass(frozen=True)
class Bound:
    """Hold what is known of a censored value. sign: `>` where it exceeds the limit, `<` where it stays below."""

    limit: float
    sign: str

    def text(self, unit: str = "") -> str:
        """Return `> 40 s`."""
        return f"{self.sign} {self.limit:.3g}{unit}"

    def is_near(self, other: Bound) -> bool:
        """Check that both are so close that their arrows cover each other."""
        return self.sign == other.sign and math.isclose(self.limit, other.limit, rel_tol=NEAR)


def bound_of(value: Estimate) -> Bound | None:
    """Return what the median is known to exceed or to stay below; None where it is a number, and where nothing is known
    of it, as of runs that diverged."""
    if math.isinf(value.median) and value.above is not None and 0 < value.above.median < math.inf:
        return Bound(value.above.median, ">")
    if value.median == 0 and value.below is not None and 0 < value.below.median < math.inf:
        return Bound(value.below.median, "<")
    return None


def is_missed(value: Estimate) -> bool:
    """Check that the median is of runs that missed the target: an infinite time, or a speed-up of 0, known or not."""
    return math.isinf(value.median) or (value.median == 0 and value.below is not None)


def draw_censored(axes: Axes, x: float, y: float, towards: str, **style: Any) -> Line2D:
    """Draw the hollow arrow of a value that lies beyond a place. towards: where, one of `>`, `^` and `v`."""
    look = {"markerfacecolor": "white", "markeredgewidth": 1.2, "linestyle": "", "clip_on": False, "zorder": 4} | style
    (mark,) = axes.plot([x], [y], marker=towards, **look)
    return mark


def draw_limits(axes: Axes, limits: Sequence[tuple[float, Bound, str]], unit: str = "") -> None:
    """Draw hollow arrows at limits on the vertical axis, and say each. limits: x, what is known and colour; of those at
    nearly one place the later is around the earlier, so that both are seen. unit: behind the number."""
    points = float(matplotlib.rcParams["lines.markersize"])
    drawn: list[tuple[float, Bound]] = []
    for x, bound, colour in limits:
        nested = sum(at == x and other.is_near(bound) for at, other in drawn)
        drawn.append((x, bound))
        size = points * (1 + 0.9 * nested)
        style = {"color": colour, "markersize": size, "zorder": 4 - 0.1 * nested}
        draw_censored(axes, x, bound.limit, _TOWARDS[bound.sign], **style)
        if not nested:
            look = {"textcoords": "offset points", "ha": "center", "fontsize": "small"}
            axes.annotate(bound.text(unit), (x, bound.limit), (0, 1.4 * points), **look)
