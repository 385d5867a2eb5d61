"""Image sets that need no download: handwritten digits, and drawn shapes.

Digits are 1,797 grey images of 8 x 8 pixels, which are in this package. Source: Alpaydin and Kaynak 1998, Optical
recognition of handwritten digits, UCI repository (its test part, as scikit-learn ships it). Their licence:
digits_licence.txt.

Shapes are images of any size with one of up to twelve shapes on noise and clutter. Position, size, rotation, colours
and polarity (dark on light or light on dark) are random, so that no single pixel tells the class: a linear model fails
where a small convolutional network succeeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import numpy as np

from dsgd.data.split import Arrays, ImageSet
from dsgd.keys import check_options
from dsgd.streams import stream

TRAIN, TEST = 1437, 360


@dataclass(frozen=True)
class Digits(ImageSet):
    """10 classes, 1,437 training and 360 test images; the split is the same in every run."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (1, 8, 8)

    @property
    def classes(self) -> int:
        return 10

    def train_samples(self, nodes: int) -> int:
        return self.kept(TRAIN)

    def read(self) -> tuple[Arrays, Arrays]:
        images, labels = read_digits()
        images = images.reshape(-1, 1, 8, 8)
        order = stream("digits split").permutation(TRAIN + TEST)  # of all runs: results must be comparable
        train, test = ((images[part], labels[part].astype(np.int64)) for part in (order[:TRAIN], order[TRAIN:]))
        return train, test


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Read the images [1797, 8, 8], values of 0 to 16, and their labels [1797], all of them bytes."""
    with files("dsgd.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        return arrays["images"], arrays["labels"]


MOST_RESOLUTION = 1024
MOST_VALUES = 2**32  # bytes of the images of one split, in memory; four times as many as numbers


@dataclass(frozen=True)
class Shapes(ImageSet):
    """Images [channels, resolution, resolution] of the first `classes` kinds of `KINDS`, equally many of each."""

    resolution: int = 16  # pixels of a side
    classes: int = 8
    channels: int = 1  # 1 grey, 3 colour
    train_size: int = 4000  # training images
    test_size: int = 1000  # test images
    noise: float = 0.05  # standard deviation of the pixel noise; black is 0 and white 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, resolution=f"in [8, {MOST_RESOLUTION}]", classes=f"in [2, {len(KINDS)}]")
        if self.channels not in (1, 3):
            raise ValueError(f"channels must be 1 or 3, got {self.channels}")
        for key, value in (("train_size", self.train_size), ("test_size", self.test_size)):
            if value < 1:
                raise ValueError(f"{key} must be >= 1, got {value}")
            if value > (most := MOST_VALUES // (self.channels * self.resolution**2)):
                rule = f"<= {most} with resolution={self.resolution}, channels={self.channels}"
                raise ValueError(f"{key} must be {rule}, got {value}")
        check_options(self, noise="in [0, 1]")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.channels, self.resolution, self.resolution)

    def train_samples(self, nodes: int) -> int:
        return self.kept(self.train_size)

    def read(self) -> tuple[Arrays, Arrays]:
        return _drawn(*self._drawing)

    @property
    def _drawing(self) -> tuple[int, int, int, int, int, float]:
        return self.resolution, self.classes, self.channels, self.train_size, self.test_size, self.noise

    def draw(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return `count` images [count, channels, resolution, resolution] uint8 and their labels [count] int64."""
        labels = rng.permutation(np.arange(count) % self.classes)
        images = np.empty((count, *self.input_shape), np.uint8)
        size = max(1, CHUNK_PIXELS // self.resolution**2)
        for start in range(0, count, size):
            images[start : start + size] = self._draw(labels[start : start + size], rng)
        return images, labels

    def _draw(self, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        count = len(labels)
        radius = rng.uniform(0.5, 0.75, count)  # the image spans [-1, 1]
        u, v = self._frame(rng.uniform(-1, 1, (2, count)) * (0.95 - radius), radius, rng.uniform(0, 2 * np.pi, count))
        shape = np.empty_like(u)
        for kind, distance in enumerate(KINDS.values()):
            chosen = labels == kind
            shape[chosen] = distance(u[chosen], v[chosen])
        background = rng.uniform(0, 1, (count, self.channels, 1, 1)).astype(np.float32)
        contrast = rng.uniform(0.4, 0.6, background.shape).astype(np.float32)
        away = np.where(background < 0.5, contrast, -contrast)  # brighter on dark backgrounds, darker on light ones
        image = background + self._cover(shape, radius) * away
        for _ in range(CLUTTER):
            speck = np.full(count, 0.1)
            u, v = self._frame(rng.uniform(-1, 1, (2, count)), speck, np.zeros(count))
            colour = rng.uniform(0, 1, background.shape).astype(np.float32)
            image += self._cover(_disc(u, v), speck) * (colour - image)
        image += self.noise * rng.standard_normal(image.shape, dtype=np.float32)
        return (255 * image.clip(0, 1)).round().astype(np.uint8)

    def _frame(self, centre: np.ndarray, radius: np.ndarray, angle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return pixel coordinates (u, v) [n, resolution, resolution] relative to the shape's centre, in its radius."""
        line = ((2 * np.arange(self.resolution) + 1) / self.resolution - 1).astype(np.float32)
        (x0, y0), scale = centre.astype(np.float32)[..., None, None], (1 / radius).astype(np.float32)[:, None, None]
        x, y = (line[None, None, :] - x0) * scale, (line[None, :, None] - y0) * scale
        cos, sin = (f(angle).astype(np.float32)[:, None, None] for f in (np.cos, np.sin))
        return cos * x + sin * y, cos * y - sin * x

    def _cover(self, distance: np.ndarray, radius: np.ndarray) -> np.ndarray:
        """Return the share of each pixel inside a shape, [n, 1, resolution, resolution]. distance: radii to the
        border."""
        pixels = distance * (radius * self.resolution / 2).astype(np.float32)[:, None, None]
        return (0.5 - pixels).clip(0, 1)[:, None]


def draw_shared(every: Iterable[object]) -> None:
    """Draw the shapes of a sweep once, if all jobs that have shapes have the same, and they are small: the jobs'
    processes, which are forked, inherit them. every: the data of each job."""
    shapes = [data for data in every if isinstance(data, Shapes)]
    drawings = {data._drawing for data in shapes}
    if len(shapes) > 1 == len(drawings) and math.prod(shapes[0].input_shape) * shapes[0].train_size <= SHARED_BYTES:
        shapes[0].read()


@lru_cache(maxsize=1)  # all runs of a sweep have the same: the run's seed only orders the images
def _drawn(
    resolution: int, classes: int, channels: int, train_size: int, test_size: int, noise: float
) -> tuple[Arrays, Arrays]:
    shapes = Shapes(resolution, classes, channels, train_size, test_size, noise)
    return shapes.draw(train_size, stream("shapes", 0, 0)), shapes.draw(test_size, stream("shapes", 0, 1))


SHARED_BYTES = 2**26
CHUNK_PIXELS = 1 << 20  # drawn at once, so that memory does not grow with the number of images
CLUTTER = 2  # specks in every image


def _disc(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.hypot(u, v) - 1


def _box(u: np.ndarray, v: np.ndarray, width: float, height: float) -> np.ndarray:
    return np.maximum(abs(u) - width, abs(v) - height)


def _star(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    sector = (np.arctan2(u, v) + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5
    radius = np.hypot(u, v)
    return 0.85 * radius * np.cos(sector) + 1.15 * radius * abs(np.sin(sector)) - 0.8


# Distance to the outline of a shape of radius about 1, negative inside; the most distinct kinds first.
KINDS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "disc": _disc,
    "ring": lambda u, v: abs(np.hypot(u, v) - 0.75) - 0.22,
    "bar": lambda u, v: _box(u, v, 1, 0.25),
    "triangle": lambda u, v: np.maximum(abs(u) * 0.866 + v * 0.5, -v) - 0.5,
    "cross": lambda u, v: np.minimum(_box(u, v, 1, 0.3), _box(u, v, 0.3, 1)),
    "dots": lambda u, v: np.hypot(abs(u) - 0.6, v) - 0.4,
    "square": lambda u, v: _box(u, v, 0.85, 0.85),
    "stripes": lambda u, v: np.minimum(_box(u, v, 0.18, 0.9), _box(abs(u) - 0.75, v, 0.18, 0.9)),
    "half disc": lambda u, v: np.maximum(_disc(u, v), v),
    "crescent": lambda u, v: np.maximum(_disc(u, v), 0.9 - np.hypot(u, v - 0.6)),
    "corner": lambda u, v: np.minimum(_box(u, v + 0.6, 0.85, 0.25), _box(u + 0.6, v, 0.25, 0.85)),
    "star": _star,
}
