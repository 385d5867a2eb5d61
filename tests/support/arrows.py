"""Tell the arrows of values that lie beyond a place from the markers of curves."""

from __future__ import annotations

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.path import Path

_SIGNS = {(1, 0): ">", (0, 1): "^", (0, -1): "v"}


def direction(mark: Line2D) -> str:
    """Return where an arrow points: `>`, `^` or `v`; empty for another marker."""
    marker = mark.get_marker()
    if not isinstance(marker, Path):
        return ""
    x, y = np.asarray(marker.vertices, dtype=float)[1]
    return _SIGNS[round(x / 2), round(y / 2)]
