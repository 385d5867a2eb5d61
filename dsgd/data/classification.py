"""Serve labelled images from memory: the loaded form of digits, shapes and cifar.

Augmentation is that of He et al. 2015 for CIFAR (arXiv 1512.03385)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dsgd.data.partition import Partition
from dsgd.streams import stream

PAD = 4  # pixels an augmented image may move in each direction


class CrossEntropy:
    """The loss of data with labels."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy of logits `outputs` [b, classes] against labels `targets` [b], in nats."""
        return F.cross_entropy(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy of each sample [b], of which `loss` is the mean."""
        return F.cross_entropy(outputs, targets, reduction="none")


@dataclass(eq=False, repr=False)
class Classification(CrossEntropy):
    """8-bit images and labels, split over the workers.

    Inputs are normalised per channel, to mean 0 and standard deviation 1 on the training set.
    train, test: images [n, channels, height, width] uint8 and labels [n] int64. Images stay 8-bit until a batch is
    made, a quarter of the memory. augment: every batch is moved by up to 4 pixels (black comes in) and mirrored at
    random, seeded by (seed, rank, step)."""

    train: tuple[np.ndarray, np.ndarray] | tuple[Tensor, Tensor]
    test: tuple[np.ndarray, np.ndarray] | tuple[Tensor, Tensor]
    classes: int
    partition: Partition
    dtype: torch.dtype
    augment: bool = False

    def __post_init__(self) -> None:
        self.samples = len(self.train[0])
        self.input_shape: tuple[int, ...] = tuple(self.train[0].shape[1:])
        self._train_images, self._train_labels = map(torch.as_tensor, self.train)
        self._test_images, self._test_labels = map(torch.as_tensor, self.test)
        self._mean, self._deviation = self._statistics()

    def move_to(self, device: torch.device) -> None:
        """Move the images to a device, where batches are made then, if they take at most half of its free memory."""
        images = self._train_images, self._test_images
        if device.type == "cuda" and 2 * sum(pixels.nbytes for pixels in images) > torch.cuda.mem_get_info(device)[0]:
            return
        self._train_images, self._test_images = (pixels.to(device) for pixels in images)
        self._train_labels, self._test_labels = self._train_labels.to(device), self._test_labels.to(device)
        self._mean, self._deviation = self._mean.to(device), self._deviation.to(device)
        for made in ("_train_set", "_test_set"):
            self.__dict__.pop(made, None)

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs [b, channels, height, width] and labels [b] of worker `rank` at its own step `step`."""
        indices = self._beside_images(self.partition.indices(rank, step))
        images = self._train_images[indices]
        if self.augment:
            images = move_and_mirror(images, *self._movements(rank, step))
        return self._normalised(images), self._train_labels[indices]

    def batches(self, ranks: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return inputs [n, b, channels, height, width] and labels [n, b]; row i is `batch(ranks[i], steps[i])`."""
        indices = self._beside_images(self.partition.several(ranks, steps))
        shape, indices = indices.shape, indices.flatten()
        labels = self._train_labels.index_select(0, indices).view(shape)
        if not self.augment:
            return self._training_inputs(indices).unflatten(0, shape), labels
        of_one = [self._movements(rank, step) for rank, step in zip(ranks, steps, strict=True)]
        down, right, mirror = (torch.cat(column) for column in zip(*of_one, strict=True))
        moved = move_and_mirror(self._train_images[indices], down, right, mirror)
        return self._normalised(moved).unflatten(0, shape), labels

    @property
    def train_set(self) -> tuple[Tensor, Tensor]:
        """All training inputs and labels, not augmented; made on first use, then kept."""
        return self._train_set

    @property
    def test_set(self) -> tuple[Tensor, Tensor]:
        """All test inputs and labels; made on first use, then kept."""
        return self._test_set

    @cached_property
    def _train_set(self) -> tuple[Tensor, Tensor]:
        return self._normalised(self._train_images), self._train_labels

    @cached_property
    def _test_set(self) -> tuple[Tensor, Tensor]:
        return self._normalised(self._test_images), self._test_labels

    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation by which images are normalised, each [channels, 1, 1]."""
        mean, deviation = (
            torch.from_numpy(moment).to(self.dtype) for moment in channel_statistics(np.asarray(self.train[0]))
        )
        return mean.view(-1, 1, 1), deviation.view(-1, 1, 1)

    def _training_inputs(self, indices: Tensor) -> Tensor:
        """Return these samples' inputs, not augmented: rows of all of them, which evaluation keeps anyway."""
        return self._train_set[0].index_select(0, indices)

    def _movements(self, rank: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the augmentation of a batch, as `movements`, on the device of the images."""
        down, right, mirror = movements(self.partition.seed, rank, step, self.partition.batch_size)
        return self._beside_images(down), self._beside_images(right), self._beside_images(mirror)

    def _beside_images(self, numbers: np.ndarray) -> Tensor:
        """Return numbers on the device of the images, which a GPU fetches in its turn: nobody waits for it."""
        tensor, device = torch.from_numpy(numbers), self._train_images.device
        return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)

    def _normalised(self, images: Tensor) -> Tensor:
        return images.to(self.dtype).sub_(self._mean).div_(self._deviation)


def channel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation [channels], float64, of 8-bit images [n, channels, height, width].

    Sums are exact integers and need no float copy of the images. The deviation of a constant channel is set to 1, so
    that it can be divided by."""
    count = images[:, 0].size
    mean = images.sum(axis=(0, 2, 3), dtype=np.int64) / count
    square = np.einsum("nchw,nchw->c", images, images, dtype=np.int64) / count
    deviation = np.sqrt(np.maximum(square - mean**2, 0))
    return mean, np.where(deviation > 0, deviation, 1.0)


def movements(seed: int, rank: int, step: int, samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw the augmentation of a batch: pixels down, pixels to the right, whether to mirror, each [samples]."""
    rng = stream("augmentation", seed, rank, step)
    down, right = rng.integers(-PAD, PAD + 1, (2, samples))
    return down, right, rng.integers(0, 2, samples) == 1


def move_and_mirror(images: Tensor, down: Tensor, right: Tensor, mirror: Tensor) -> Tensor:
    """Shift each image by (down, right) pixels, zeros coming in, then flip it left to right where `mirror`.

    The same as padding by 4, cropping at (4 - down, 4 - right) and flipping. images: [b, channels, height, width];
    down, right: [b] integers in [-4, 4]; mirror: [b] bool. Returns a new tensor."""
    height, width = images.shape[2:]
    padded = F.pad(images, (PAD, PAD, PAD, PAD))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # [b, channels, 9, 9, height, width], a view
    moved = windows[torch.arange(len(images), device=images.device), :, PAD - down, PAD - right]
    return torch.where(mirror.view(-1, 1, 1, 1), moved.flip(-1), moved)
