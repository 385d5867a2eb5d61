"""Choose which axes are logarithmic: those whose values span a decade, or those that the user asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

AXES = ("x", "y")
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
    """Check that an axis with these values is logarithmic. by_default: unless the user decides; None: by the values."""
    array = np.asarray(values, dtype=float)
    if not (array > 0).any():
        return False
    chosen = _chosen.get()
    if chosen is not None:
        return axis in chosen
    return wants_log(array) if by_default is None else by_default


def wants_log(values: Any, span: float = DECADE) -> bool:
    """Check that values are not negative and span a decade, or another ratio; zeros are left out."""
    array = np.asarray(values, dtype=float)
    positive = array[(array > 0) & np.isfinite(array)]
    return bool(len(positive) and not (array < 0).any() and positive.max() >= span * positive.min())


def label_decades(axis: Axis, span: float) -> None:
    """Label a logarithmic axis with plain numbers, within the decades, too, where there are few.

    span: ratio of the largest to the smallest value."""
    axis.set_major_locator(LogLocator(subs=(1.0,) if span > 300 else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
