"""Load handwritten digits: 1,797 grey images of 8 x 8 pixels, which are in this package.

Source: Alpaydin and Kaynak 1998, Optical recognition of handwritten digits, UCI repository (its test part, as
scikit-learn ships it). Their licence: digits_licence.txt.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from dsgd.data.split import Arrays, ImageSet
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
