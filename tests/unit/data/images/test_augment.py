"""What is trained and evaluated on is what torchvision's transforms make of the same files."""

from __future__ import annotations

import math
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dsgd.data.images import SIDE
from dsgd.data.images.augment import (
    AREA,
    DEVIATION,
    DRAWS,
    MEAN,
    RATIO,
    TRIES,
    crop,
    evaluation_pixels,
    reduction,
    train_pixels,
)
from dsgd.data.images.decode import open_image
from tests.support.each_row import each_row
from tests.support.image_files import DECODERS, jpeg, photograph, torchvision

SIZES = [(375, 500), (500, 375), (224, 224), (256, 300), (97, 61), (40, 400)]  # none is decoded at less than full size


def pillow(content: bytes) -> Any:
    return Image.open(BytesIO(content)).convert("RGB")  # torchvision's stubs know tensors only, hence Any


def draws_of(seed: int) -> list[float]:
    return np.random.default_rng(seed).random(DRAWS).tolist()


def assert_same(pixels: np.ndarray, expected: Any) -> None:
    """To 2 of 255, and 0.25 on average: both round, and round their weights, but not at the same places."""
    difference = abs(pixels.transpose(1, 2, 0).astype(int) - np.asarray(expected))
    assert difference.max() <= 2
    assert difference.mean() < 0.25


@pytest.mark.parametrize("decoder", DECODERS)
@each_row("size", SIZES)
def test_evaluation_is_torchvisions_resize_and_centre_crop(decoder: str, size: tuple[int, int]) -> None:
    content = jpeg(photograph(*size))
    found = np.empty((3, SIDE, SIDE), np.uint8)
    evaluation_pixels(open_image(content, decoder), found)
    assert_same(
        found,
        torchvision().transforms.Compose(
            [torchvision().transforms.Resize(256), torchvision().transforms.CenterCrop(224)]
        )(pillow(content)),
    )


@pytest.mark.parametrize("decoder", DECODERS)
@each_row("size", SIZES)
def test_training_is_torchvisions_resized_crop_and_flip(decoder: str, size: tuple[int, int]) -> None:
    content = jpeg(photograph(*size))
    found = np.empty((3, SIDE, SIDE), np.uint8)
    flips = 0
    for seed in range(6):
        draws = draws_of(seed)
        train_pixels(open_image(content, decoder), draws, found)
        expected = torchvision().transforms.functional.resized_crop(pillow(content), *crop(*size, draws), [SIDE, SIDE])
        if draws[-1] < 0.5:
            expected, flips = torchvision().transforms.functional.hflip(expected), flips + 1
        assert_same(found, expected)
    assert 0 < flips < 6


def test_crops_are_distributed_as_torchvisions() -> None:
    """Area, shape and place of 4,000 crops: the two-sample Kolmogorov-Smirnov statistic stays below the bound that
    equal distributions pass 999 times of 1,000, 1.95 sqrt(2 / n)."""
    height, width, count = 300, 450, 4000
    ours = np.array([crop(height, width, draws) for draws in np.random.default_rng(0).random((count, DRAWS)).tolist()])
    torch.manual_seed(0)
    blank: Any = Image.new("L", (width, height))
    theirs = np.array(
        [torchvision().transforms.RandomResizedCrop.get_params(blank, list(AREA), list(RATIO)) for _ in range(count)]
    )

    def features(boxes: np.ndarray) -> tuple[np.ndarray, ...]:
        top, left, h, w = boxes.T
        return h * w, w / h, top / (height - h + 1), left / (width - w + 1)

    for a, b in zip(features(ours), features(theirs), strict=True):
        values = np.sort(np.concatenate([a, b]))
        shares = (np.searchsorted(np.sort(x), values, side="right") / count for x in (a, b))
        first, second = shares
        assert abs(first - second).max() < 1.95 * math.sqrt(2 / count)


@each_row("size", [(10, 500), (500, 10)])
def test_where_no_crop_fits_it_is_torchvisions_central_one(size: tuple[int, int]) -> None:
    draws = [1.0 - 1e-9, 0.5] * TRIES + [0.1, 0.2, 0.3]
    blank: Any = Image.new("L", (size[1], size[0]))
    assert crop(*size, draws) == torchvision().transforms.RandomResizedCrop.get_params(blank, [1.0, 1.0], list(RATIO))


@pytest.mark.parametrize("decoder", DECODERS)
@each_row("size", [(700, 900), (1500, 1203), (2100, 2050)])
def test_large_images_are_decoded_smaller_and_look_the_same(decoder: str, size: tuple[int, int]) -> None:
    """Mean difference below 4 of 255: the limit that docs/howto/imagenet.md states."""
    content = jpeg(photograph(*size))
    assert reduction(*size, 256) >= 2
    found = np.empty((3, SIDE, SIDE), np.uint8)
    evaluation_pixels(open_image(content, decoder), found)
    expected = torchvision().transforms.Compose(
        [torchvision().transforms.Resize(256), torchvision().transforms.CenterCrop(224)]
    )(pillow(content))
    assert abs(found.transpose(1, 2, 0).astype(int) - np.asarray(expected)).mean() < 4
    whole = [1.0 - 1e-9, 0.5] * TRIES + [0.0, 0.0, 0.9]
    box = crop(*size, whole)
    assert reduction(*box[2:], SIDE) >= 2
    train_pixels(open_image(content, decoder), whole, found)
    expected = torchvision().transforms.functional.resized_crop(pillow(content), *box, [SIDE, SIDE])
    assert abs(found.transpose(1, 2, 0).astype(int) - np.asarray(expected)).mean() < 4


def test_the_normalisation_is_torchvisions_constants() -> None:
    np.testing.assert_allclose(MEAN / 255, [0.485, 0.456, 0.406])
    np.testing.assert_allclose(DEVIATION / 255, [0.229, 0.224, 0.225])
