"""Options that all sets of labelled images in memory have in common, and how they are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsgd.data.split import Split
from dsgd.data.validation import Arrays

if TYPE_CHECKING:
    import torch

    from dsgd.data.classification import Classification


@dataclass(frozen=True, kw_only=True)
class ImageSet(Split):
    """Labelled images in memory, which can be augmented."""

    augment: bool = False  # shift by up to 4 pixels and mirror at random, in training only

    def classification(
        self, sets: tuple[Arrays, Arrays], classes: int, nodes: int, batch_size: int, seed: int, dtype: torch.dtype
    ) -> Classification:
        """Return the loaded form. sets: images and labels for training and for test, before any are held out."""
        from dsgd.data.classification import Classification

        train, test = self.arrays(*sets)
        partition = self.partition(train[1], nodes, batch_size, seed)
        return Classification(train, test, classes, partition, dtype, self.augment)
