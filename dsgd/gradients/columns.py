"""Products of N models' weights with values whose samples lie side by side: [N, ..., b].

A linear layer is one batched product there, with nothing to turn around. So is a convolution of images of a few pixels,
once its windows are columns (im2col): kernels made for images are mostly busy with the edges of such small ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

ALIGNED = 16  # numbers, 64 bytes of float32
Pair = Sequence[int]  # of the two axes of an image


def products(w: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """w [n, out, in] times x [n, in, b], plus bias [n, out]: [n, out, b].

    Small products come out with other last bits where a matrix does not begin at a multiple of 64 bytes, which would
    depend on the model's place: there zeros fill up."""
    # the weights come first: then their gradients lie in memory as they do
    outputs, inputs, samples = w.shape[1], w.shape[2], x.shape[2]
    if not (samples * inputs % ALIGNED or samples * outputs % ALIGNED or inputs * outputs % ALIGNED):
        return torch.bmm(w, x) if bias is None else torch.baddbmm(bias.unsqueeze(2), w, x)
    more, wider = -inputs % ALIGNED, -outputs % ALIGNED
    y = torch.bmm(F.pad(w, (0, more, 0, wider)), F.pad(x, (0, 0, 0, more)))[:, :outputs]
    return y.contiguous() if bias is None else y + bias.unsqueeze(2)


def convolution(w: Tensor, x: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """w [n, out, in, k, l] over x [n, in, height, width, b], plus bias [n, out]: [n, out, height', width', b]."""
    axes = list(zip(x.shape[2:4], w.shape[3:], stride, padding, dilation, strict=True))
    size = tuple(pixels_after(*axis) for axis in axes)
    taps = tuple(_taps(*axis) for axis in axes)
    windows: Tensor = _Windows.apply(x, size, taps)  # pyright: ignore[reportAssignmentType]
    y = products(w.flatten(2), windows.view(len(x), w[0, 0].numel(), -1), bias)
    return y.view(len(x), -1, *size, x.shape[4])


def pixels_after(pixels: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """How many pixels a convolution leaves of an axis."""
    return (pixels + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _taps(pixels: int, kernel: int, stride: int, padding: int, dilation: int) -> list[tuple[slice, slice]]:
    """For each tap of the kernel, for which pixels of the result it meets the image, and what pixels it meets."""
    found: list[tuple[slice, slice]] = []
    for tap in range(kernel):
        offset = tap * dilation - padding
        first = max(0, -(offset // stride))
        last = min(pixels_after(pixels, kernel, stride, padding, dilation), (pixels - 1 - offset) // stride + 1)
        last = max(first, last)
        begin = first * stride + offset
        found.append((slice(first, last), slice(begin, max(begin, (last - 1) * stride + offset + 1), stride)))
    return found


class _Windows(Function):
    """[n, in, height, width, b] -> [n, in, k, l, height', width', b]: what each tap of a kernel meets."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: tuple[int, int], taps: Any) -> Tensor:
        ctx.shape, ctx.taps = x.shape, taps
        rows, columns = taps
        windows = x.new_zeros(*x.shape[:2], len(rows), len(columns), *size, x.shape[4])
        for i, (to_row, row) in enumerate(rows):
            for j, (to_column, column) in enumerate(columns):
                windows[:, :, i, j, to_row, to_column] = x[:, :, row, column]
        return windows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (g,) = gradients
        rows, columns = ctx.taps
        back = g.new_zeros(ctx.shape)
        for i, (to_row, row) in enumerate(rows):
            for j, (to_column, column) in enumerate(columns):
                back[:, :, row, column] += g[:, :, i, j, to_row, to_column]
        return back, None, None
