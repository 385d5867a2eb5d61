"""Linear layers and small convolutions of N models as one batched matrix product, samples last: [N, ..., b].

A linear layer is such a product without any transposition. So is a convolution once its windows are unfolded to columns
(im2col); for images of a few pixels that is faster than torch's convolutions, which mostly handle edges there.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

ALIGNED = 16  # numbers, 64 bytes of float32
Pair = tuple[int, ...]  # of the two axes of an image


def batched_matmul(w: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply w [n, out, in] by x [n, in, b] and add bias [n, out]: [n, out, b].

    Small products have other last bits where a matrix does not begin at a multiple of 64 bytes, which would depend on
    the model's place in the stack: zeros pad such matrices."""
    # the weights come first: then their gradients lie in memory as they do
    outputs, inputs, samples = w.shape[1], w.shape[2], x.shape[2]
    if is_aligned(outputs, inputs, samples):
        return torch.bmm(w, x) if bias is None else torch.baddbmm(bias.unsqueeze(2), w, x)
    more, wider = -inputs % ALIGNED, -outputs % ALIGNED
    y = torch.bmm(F.pad(w, (0, more, 0, wider)), F.pad(x, (0, 0, 0, more)))[:, :outputs]
    return y.contiguous() if bias is None else y + bias.unsqueeze(2)


def is_aligned(outputs: int, inputs: int, samples: int) -> bool:
    """Tell whether each of many matrices of these sizes begins at a multiple of 64 bytes, where the first one does."""
    return not (samples * inputs % ALIGNED or samples * outputs % ALIGNED or inputs * outputs % ALIGNED)


def unfolded_convolution(
    w: Tensor, x: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair
) -> Tensor:
    """Convolve x [n, in, height, width, b] with w [n, out, in, k, l] and add bias [n, out]: [n, out, pixels, b].

    pixels: of the resulting image, row by row."""
    n, _, height, width, b = x.shape
    images = x.reshape(-1, height * width, b)
    windows = window_pixels((height, width), tuple(w.shape[3:]), stride, padding, dilation)
    padded = torch.cat((images.new_zeros(len(images), 1, b), images), dim=1)
    columns = padded.index_select(1, windows.flatten().to(x.device))
    y = batched_matmul(w.flatten(2), columns.view(n, w[0, 0].numel(), -1), bias)
    return y.view(n, -1, windows.shape[1], b)


@cache
def window_pixels(size: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """Return the pixel of an image under each tap of the kernel at each place, [k l, places]: 1 + its index in the
    image, row by row, or 0 outside of the image."""
    pixels = torch.arange(1.0, 1 + size[0] * size[1], dtype=torch.float64).view(1, 1, *size)
    return F.unfold(pixels, kernel, dilation, padding, stride)[0].long()
