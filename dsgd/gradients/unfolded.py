"""Products of N models' weights with values whose samples lie side by side: [N, ..., b].

A linear layer is one batched product there, with nothing to turn around. So is a convolution of images of a few pixels,
once its windows are columns (im2col): kernels made for images are mostly busy with the edges of such small ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

ALIGNED = 16  # numbers, 64 bytes of float32
Pair = Sequence[int]  # of the two axes of an image
Axis = tuple[int, int, int, int, int]  # pixels, kernel, stride, padding, dilation of one of them


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
    n, _, height, width, b = x.shape
    axes = tuple(zip((height, width), w.shape[3:], stride, padding, dilation, strict=True))
    pixels = x.reshape(-1, height * width, b)
    beyond = x.new_zeros(len(pixels), 1, b)
    windows = torch.cat((pixels, beyond), dim=1).index_select(1, _met(axes, x.device))
    y = products(w.flatten(2), windows.view(n, w[0, 0].numel(), -1), bias)
    return y.view(n, -1, *(pixels_after(*axis) for axis in axes), b)


def pixels_after(pixels: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """How many pixels a convolution leaves of an axis."""
    return (pixels + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


@cache
def _met(axes: tuple[Axis, Axis], device: torch.device) -> Tensor:
    """[k l height' width']: the pixel that each tap of the kernel meets for each pixel of the result, row by row;
    height * width beyond the edges."""
    rows, columns = (_met_along(*axis) for axis in axes)
    height, width = axes[0][0], axes[1][0]
    rows, columns = rows[:, None, :, None], columns[:, None, :]  # of k, l, height', width'
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return torch.where(inside, rows * width + columns, height * width).flatten().to(device)


def _met_along(pixels: int, kernel: int, stride: int, padding: int, dilation: int) -> Tensor:
    """[k, pixels']: of one axis, negative or >= pixels beyond the edges."""
    after = torch.arange(pixels_after(pixels, kernel, stride, padding, dilation))
    return after * stride + torch.arange(kernel)[:, None] * dilation - padding
