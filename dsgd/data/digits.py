"""Load handwritten digits: scikit-learn's 1,797 grey images of 8 x 8 pixels, no download.

Source: Alpaydin and Kaynak 1998, Optical recognition of handwritten digits, UCI repository (its test part).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsgd.data.partition import Partition, check_share
from dsgd.streams import stream

if TYPE_CHECKING:
    import torch

    from dsgd.data.classification import Classification

TRAIN, TEST = 1437, 360


@dataclass(frozen=True)
class Digits:
    """10 classes, 1,437 training and 360 test images; the split is the same in every run."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (1, 8, 8)

    @property
    def classes(self) -> int:
        return 10

    def train_samples(self, nodes: int) -> int:
        return TRAIN

    def check(self, nodes: int, batch_size: int) -> None:
        check_share(TRAIN, nodes, batch_size)

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> Classification:
        from sklearn.datasets import load_digits

        from dsgd.data.classification import Classification

        pixels, labels = load_digits(return_X_y=True)  # values 0 to 16
        images = pixels.astype(np.uint8).reshape(-1, 1, 8, 8)
        order = stream("digits split").permutation(TRAIN + TEST)  # of all runs: results must be comparable
        train, test = ((images[part], labels[part].astype(np.int64)) for part in (order[:TRAIN], order[TRAIN:]))
        return Classification(train, test, self.classes, Partition(TRAIN, nodes, batch_size, seed), dtype)
