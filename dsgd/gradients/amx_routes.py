"""Routes through images for convolutions by AMX: the packed pixels, and the first pixel that each pixel of a result
reads. `csrc/amx.h` defines the format of a route."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

# Taps, and the coordinates that they read, in ascending order, including coordinates outside of the image.
Reads = list[tuple[int, int]]


@dataclass(frozen=True)
class ImageAxis:
    """A convolution along one axis of its images. size, result: pixels of the input and of the result. kernel: taps."""

    size: int
    result: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    def forth(self) -> list[Reads]:
        """Return for each pixel of the result the pixels of the input under the taps."""
        taps = range(self.kernel)
        return [
            [(tap, position * self.stride + tap * self.dilation - self.padding) for tap in taps]
            for position in range(self.result)
        ]

    def back(self) -> list[Reads]:
        """Return for each pixel of the input the pixels of the result that have it under a tap."""
        places = [
            [(tap, pixel + self.padding - tap * self.dilation) for tap in reversed(range(self.kernel))]
            for pixel in range(self.size)
        ]
        return [[(tap, at // self.stride) for tap, at in reads if at % self.stride == 0] for reads in places]


def route(axes: Sequence[ImageAxis]) -> Tensor:
    """Return the route of a convolution of images with two axes, rows and columns."""
    rows, columns = (axis.forth() for axis in axes)
    return _route(rows, columns, [axis.size for axis in axes], axes[1].kernel)


def route_back(axes: Sequence[ImageAxis]) -> Tensor:
    """Return the route from the gradient of a convolution's result to its input's gradient."""
    rows, columns = (axis.back() for axis in axes)
    return _route(rows, columns, [axis.result for axis in axes], axes[1].kernel)


def _route(rows: list[Reads], columns: list[Reads], size: Sequence[int], kernel: int) -> Tensor:
    """Return a route. rows, columns: reads of each row and column of its result, in an image of this size. kernel:
    taps."""
    down, along = _span(rows), _span(columns)
    source = [
        row * size[1] + column if row in range(size[0]) and column in range(size[1]) else -1
        for row in down
        for column in along
    ]
    numbers: list[int] = []
    phases = [(some_rows, some_columns) for some_rows in _phases(rows) for some_columns in _phases(columns)]
    for some_rows, some_columns in phases:
        first_row, first_column = rows[some_rows[0]], columns[some_columns[0]]
        beside = all(after - before == 1 for (_, before), (_, after) in pairwise(first_column))
        parts = [first_column] if beside and first_column else [[read] for read in first_column]
        runs = [(row, part) for row in first_row for part in parts]
        numbers += [len(some_rows) * len(some_columns), len(runs), len(runs[0][1]) if runs else 1]
        numbers += [row_tap * kernel + tap for (row_tap, _), part in runs for tap, _ in part]
        numbers += [(row - first_row[0][1]) * len(along) + part[0][1] - first_column[0][1] for (_, row), part in runs]
        for row in some_rows:
            for column in some_columns:
                start = (rows[row][0][1] - down[0]) * len(along) + columns[column][0][1] - along[0] if runs else 0
                numbers += [row * len(columns) + column, start]
    return torch.tensor([len(source), len(phases), *source, *numbers], dtype=torch.int32)


def _span(axis: list[Reads]) -> range:
    """Return all coordinates from the first to the last that are read."""
    coordinates = [coordinate for reads in axis for _, coordinate in reads]
    return range(min(coordinates), max(coordinates) + 1)


def _phases(axis: list[Reads]) -> list[list[int]]:
    """Return the places of an axis in groups that read the same taps."""
    by_taps: dict[tuple[int, ...], list[int]] = {}
    for position, reads in enumerate(axis):
        by_taps.setdefault(tuple(tap for tap, _ in reads), []).append(position)
    return list(by_taps.values())
