"""Augment and resize as is standard on ImageNet, for training and for evaluation: from an image to [3, 224, 224].

Training: a crop of 8 to 100 % of the area, 3/4 to 4/3 as wide as high, resized and mirrored at random (Szegedy et al.
2015, Going deeper with convolutions). Evaluation: the shorter side resized to 256, then the centre.

At full size the pixels equal torchvision's transforms on Pillow images to 2 of 255, and 0.25 on average: the filter is
the same, but its weights are rounded differently. If the crop is at least twice as large as the output, the image is
decoded at 1/2, 1/4 or 1/8: faster, and within 4 of 255 on average on photographs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional as F

from dsgd.data.images import SIDE
from dsgd.data.images.decode import Box, Picture

ELONGATED = 16  # above this ratio of sides, only the middle of an image is used: the whole could take any memory
RESIZED = 256  # pixels: the shorter side before the centre is taken
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
TRIES = 10
DRAWS = 2 * TRIES + 3  # random numbers in [0, 1) for one image: area and ratio of each try, top, left, mirror
# torchvision's constants, in units of 8-bit pixels
MEAN = 255 * np.array([0.485, 0.456, 0.406])
DEVIATION = 255 * np.array([0.229, 0.224, 0.225])


def train_pixels(picture: Picture, draws: Sequence[float], out: np.ndarray) -> None:
    """Write a random crop to out [3, 224, 224] uint8. draws: [DRAWS]. Raises BrokenImage."""
    box = crop(picture.height, picture.width, draws)
    resized = _resized_box(picture, box, SIDE, SIDE)
    _copy_planes(resized[:, :, ::-1] if draws[-1] < 0.5 else resized, out)


def evaluation_pixels(picture: Picture, out: np.ndarray) -> None:
    """Write the centre to out [3, 224, 224] uint8. Raises BrokenImage."""
    most = ELONGATED * min(picture.height, picture.width)
    height, width = min(picture.height, most), min(picture.width, most)
    short = min(height, width)
    rows, columns = int(RESIZED * height / short), int(RESIZED * width / short)
    down, right = round((rows - SIDE) / 2), round((columns - SIDE) / 2)
    middle = Box((picture.height - height) // 2, (picture.width - width) // 2, height, width)
    resized = _resized_box(picture, middle, rows, columns)
    _copy_planes(resized[:, down : down + SIDE, right : right + SIDE], out)


def _resized_box(picture: Picture, box: Box, rows: int, columns: int) -> np.ndarray:
    """Decode the box and resize it to [3, rows, columns] uint8."""
    factor = reduction(box.height, box.width, min(rows, columns))
    return resized(picture.pixels(factor, box), rows, columns)


def _copy_planes(pixels: np.ndarray, out: np.ndarray) -> None:
    for plane, target in zip(pixels, out, strict=True):  # all at once takes numpy half as long again
        target[...] = plane


def crop(height: int, width: int, draws: Sequence[float]) -> Box:
    """Return a random part of an image; the centre if no attempt fits. draws: [DRAWS] random numbers."""
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for area, shape in zip(draws[0 : 2 * TRIES : 2], draws[1 : 2 * TRIES : 2], strict=True):
        pixels = height * width * (AREA[0] + area * (AREA[1] - AREA[0]))
        ratio = math.exp(low + shape * (high - low))
        h, w = round(math.sqrt(pixels / ratio)), round(math.sqrt(pixels * ratio))
        if 0 < h <= height and 0 < w <= width:
            return Box(int(draws[-3] * (height - h + 1)), int(draws[-2] * (width - w + 1)), h, w)
    h, w = height, width
    if width / height < RATIO[0]:
        h = round(width / RATIO[0])
    elif width / height > RATIO[1]:
        w = round(height * RATIO[1])
    return Box((height - h) // 2, (width - w) // 2, h, w)


def reduction(height: int, width: int, least: int) -> int:
    """Return the largest divisor of both sides, out of 1, 2, 4, 8, that leaves them at least `least`."""
    return max(factor for factor in (1, 2, 4, 8) if factor == 1 or min(height, width) >= factor * least)


def resized(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize pixels [h, w, 3] uint8 to [3, height, width] uint8, by the bilinear filter with anti-aliasing.

    By torch, which does it three times as fast as Pillow, if the strides say "channels last" even for one image."""
    h, w, _ = pixels.shape
    row, column, channel = pixels.strides
    image = torch.from_numpy(pixels).as_strided((1, 3, h, w), (h * row, channel, row, column))
    return F.interpolate(image, size=(height, width), mode="bilinear", antialias=True)[0].numpy()
