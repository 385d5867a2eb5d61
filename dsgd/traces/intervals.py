"""Sets of times as arrays of intervals [intervals, 2], in order and apart, each with its begin and its end."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.float64]


def merged(begins: NDArray[np.float64], ends: NDArray[np.float64]) -> Intervals:
    """Return the times that lie in at least one of the intervals, which come in any order."""
    if not len(begins):
        return np.empty((0, 2))
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    first = np.concatenate(([True], begins[1:] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.stack([begins[first], ends[last]], axis=1)


def union(sets: Iterable[Intervals]) -> Intervals:
    """Return the times that lie in at least one set."""
    together = np.concatenate([np.empty((0, 2)), *sets])
    return merged(together[:, 0], together[:, 1])


def clipped(times: Intervals, begin: float, end: float) -> Intervals:
    """Return the times of a set between two times."""
    first, last = np.searchsorted(times[:, 1], begin, "right"), np.searchsorted(times[:, 0], end, "left")
    return np.clip(times[first:last], begin, end)


def without(times: Intervals, removed: Intervals) -> Intervals:
    """Return the times of a set that do not lie in another one."""
    if not len(times) or not len(removed):
        return times
    begin, end = min(times[0, 0], removed[0, 0]), max(times[-1, 1], removed[-1, 1])
    return common(times, gaps(removed, begin, end))


def common(some: Intervals, others: Intervals) -> Intervals:
    """Return the times that lie in both sets."""
    first = np.searchsorted(others[:, 1], some[:, 0], "right")
    counts = np.maximum(np.searchsorted(others[:, 0], some[:, 1], "left") - first, 0)
    index = np.repeat(np.arange(len(some)), counts)
    other = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    begins = np.maximum(some[index, 0], others[other, 0])
    return np.stack([begins, np.minimum(some[index, 1], others[other, 1])], axis=1)


def gaps(times: Intervals, begin: float, end: float) -> Intervals:
    """Return the times between two times that do not lie in a set."""
    inside = clipped(times, begin, end)
    edges = np.concatenate(([begin], inside.ravel(), [end])).reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]


def length(times: Intervals) -> float:
    """Return the sum of the lengths of a set."""
    return float((times[:, 1] - times[:, 0]).sum())
