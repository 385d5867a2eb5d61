"""The pixels over which a kernel goes."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

RowsColumns = tuple[int, ...]  # of the two axes of an image


@cache
def window_pixels(
    size: RowsColumns, kernel: RowsColumns, stride: RowsColumns, padding: RowsColumns, dilation: RowsColumns
) -> Tensor:
    """Return the pixel of an image under each tap of the kernel at each place, [k l, places]: 1 + its index in the
    image, row by row, or 0 outside of the image."""
    pixels = torch.arange(1.0, 1 + size[0] * size[1], dtype=torch.float64).view(1, 1, *size)
    return F.unfold(pixels, kernel, dilation, padding, stride)[0].long()
