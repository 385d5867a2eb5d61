"""Serve samples from memory: the loaded forms of labelled images, of windows of text, and of the quadratics of
`quadratic.py`.

The augmentation of images follows He et al. 2015 for CIFAR (arXiv 1512.03385).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dsgd.data.partition import Partition, evaluation_order
from dsgd.host.gpu_facts import free_bytes
from dsgd.models import TokenShape
from dsgd.streams import stream

PAD = 4  # pixels an augmented image may move in each direction
EVALUATED_BYTES = 2**14  # predicted in one forward pass: bounds the memory of activations


class CrossEntropy:
    """The loss of data with labels."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy of logits `outputs` [b, classes] against labels `targets` [b], in nats."""
        return F.cross_entropy(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy of each sample [b]; `loss` is their mean."""
        return F.cross_entropy(outputs, targets, reduction="none")


@dataclass(eq=False, repr=False)
class Classification(CrossEntropy):
    """8-bit images and labels, split over the workers.

    Inputs are normalised per channel, to mean 0 and standard deviation 1 on the training set.
    train, test: images [n, channels, height, width] uint8 and labels [n] int64. Images stay 8-bit until a batch is
    made, a quarter of the memory. augment: every batch is moved by up to 4 pixels (with black borders) and mirrored at
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
        self._train_set: tuple[Tensor, Tensor] | None = None
        self._test_set: tuple[Tensor, Tensor] | None = None

    def move_to(self, device: torch.device) -> None:
        """Move the images to a device, which then makes the batches, if they take at most half of its free memory."""
        images = self._train_images, self._test_images
        free = None if device.type == "cpu" else free_bytes(device)
        if free is not None and 2 * sum(pixels.nbytes for pixels in images) > free:
            return
        self._train_images, self._test_images = (pixels.to(device) for pixels in images)
        self._train_labels, self._test_labels = self._train_labels.to(device), self._test_labels.to(device)
        self._mean, self._deviation = self._mean.to(device), self._deviation.to(device)
        self._train_set = self._test_set = None

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
        """Return all training inputs and labels, not augmented; made on first use, then kept."""
        if self._train_set is None:
            self._train_set = self._normalised(self._train_images), self._train_labels
        return self._train_set

    @property
    def test_set(self) -> tuple[Tensor, Tensor]:
        """Return all test inputs and labels; made on first use, then kept."""
        if self._test_set is None:
            self._test_set = self._normalised(self._test_images), self._test_labels
        return self._test_set

    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the normalisation, each [channels, 1, 1]."""
        mean, deviation = (
            torch.from_numpy(moment).to(self.dtype) for moment in channel_statistics(np.asarray(self.train[0]))
        )
        return mean.view(-1, 1, 1), deviation.view(-1, 1, 1)

    def _training_inputs(self, indices: Tensor) -> Tensor:
        """Return these samples' inputs, not augmented: rows of all of them, which evaluation keeps anyway."""
        return self.train_set[0].index_select(0, indices)

    def _movements(self, rank: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the augmentation of a batch, as `movements`, on the device of the images."""
        down, right, mirror = movements(self.partition.seed, rank, step, self.partition.batch_size)
        return self._beside_images(down), self._beside_images(right), self._beside_images(mirror)

    def _beside_images(self, numbers: np.ndarray) -> Tensor:
        """Return numbers on the device of the images. A GPU copies them asynchronously."""
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
    """Shift each image by (down, right) pixels, with zeros at the border, then flip it left to right if `mirror`.

    The same as padding by 4, cropping at (4 - down, 4 - right) and flipping. images: [b, channels, height, width];
    down, right: [b] integers in [-4, 4]; mirror: [b] bool. Returns a new tensor."""
    height, width = images.shape[2:]
    padded = F.pad(images, (PAD, PAD, PAD, PAD))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # [b, channels, 9, 9, height, width], a view
    moved = windows[torch.arange(len(images), device=images.device), :, PAD - down, PAD - right]
    return torch.where(mirror.view(-1, 1, 1, 1), moved.flip(-1), moved)


def windows(text: bytes, context: int) -> np.ndarray:
    """Cut a text into windows [n, context + 1] uint8, a view: each begins with the last byte of the one before."""
    each = np.lib.stride_tricks.sliding_window_view(np.frombuffer(text, np.uint8), context + 1)
    return each[::context]


@dataclass(eq=False, repr=False)
class TextWindows:
    """Windows of bytes [n, context + 1] for training and test, split over the workers.

    Inputs are the first `context` bytes of a window, targets the byte after each: int64 in [0, 256)."""

    train: np.ndarray
    test: np.ndarray
    partition: Partition
    classes: int = 256

    def __post_init__(self) -> None:
        self.samples = len(self.train)
        self.input_shape = TokenShape((self.train.shape[1] - 1,))

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets [b, context] of worker `rank` at its own step `step`."""
        return shifted(self.train[self.partition.indices(rank, step)])

    def batches(self, ranks: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets [n, b, context]; row i is `batch(ranks[i], steps[i])`."""
        return shifted(self.train[self.partition.several(ranks, steps)])

    def evaluation(self, test: bool, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of the test or training set in batches. limit: see `evaluation_order`."""
        windows = self.test if test else self.train
        order = evaluation_order(len(windows), test, limit)
        size = max(1, EVALUATED_BYTES // (windows.shape[1] - 1))
        for begin in range(0, len(order), size):
            yield shifted(windows[order[begin : begin + size]])

    @property
    def train_set(self) -> tuple[Tensor, Tensor]:
        """Return all training inputs and targets [n, context]."""
        return shifted(self.train)

    @property
    def test_set(self) -> tuple[Tensor, Tensor]:
        """Return all test inputs and targets, likewise."""
        return shifted(self.test)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy per byte, in nats, of logits `outputs` [b, 256, context] against `targets`
        [b, context]: a scalar."""
        return F.cross_entropy(outputs.transpose(1, 2).flatten(0, 1), targets.flatten())

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy per byte of each window [b]; `loss` is their mean."""
        return F.cross_entropy(outputs, targets, reduction="none").mean(dim=1)


def shifted(windows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return inputs and targets [..., context] int64 of windows [..., context + 1] uint8."""
    numbers = torch.from_numpy(windows.astype(np.int64))
    return numbers[..., :-1].contiguous(), numbers[..., 1:].contiguous()


class QuadraticData:
    """A sample is a worker: inputs [b, dim] are zeros, ignored by the model; targets [b, 2, dim] are (c_i, noise), or
    (c_i, noise, h_i), [b, 3, dim], if workers have their own curvatures."""

    def __init__(
        self,
        curvature: np.ndarray,
        targets: tuple[np.ndarray, np.ndarray],
        gradient_noise: Callable[[int, int], np.ndarray],
        dtype: torch.dtype,
        curvatures: np.ndarray | None = None,
    ) -> None:
        """curvature: [dim]. targets: common [dim], own [nodes, dim]. gradient_noise: maps (rank, step) to [dim].

        curvatures: curvature of each worker, [nodes, dim]; None: all have `curvature`, their mean."""
        common, per_worker = targets
        self.samples = len(per_worker)
        self.classes: int | None = None
        self.input_shape: tuple[int, ...] = curvature.shape
        self._curvature = torch.from_numpy(curvature).to(dtype)
        self._gradient_noise = gradient_noise
        self.train_set = _without_noise(per_worker, curvatures, dtype)
        self.test_set = _without_noise(common[None], None, dtype)

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs [1, dim] and targets [1, 2 or 3, dim] of worker `rank` at its own step `step`."""
        inputs, targets = self.train_set
        targets = targets[rank : rank + 1].clone()
        targets[0, 1] = torch.from_numpy(self._gradient_noise(rank, step))
        return inputs[rank : rank + 1], targets

    def batches(self, ranks: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return inputs [n, 1, dim] and targets [n, 1, 2 or 3, dim]; row i is `batch(ranks[i], steps[i])`."""
        inputs, targets = (whole[list(ranks)].unsqueeze(1) for whole in self.train_set)
        noise = [self._gradient_noise(rank, step) for rank, step in zip(ranks, steps, strict=True)]
        targets[:, 0, 1] = torch.from_numpy(np.stack(noise))
        return inputs, targets

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over b of 0.5 sum_j h_j (x_j - c_j)^2 + sum_j n_j x_j, a scalar.

        outputs: x, [b, dim]. targets: c and n, [b, 2, dim], or c, n and h, [b, 3, dim]."""
        return self.losses(outputs, targets).mean()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample [b]; `loss` is their mean."""
        minimum, noise, *curvatures = targets.unbind(dim=-2)
        curvature = curvatures[0] if curvatures else self._curvature.to(outputs.device)
        curved = 0.5 * curvature * (outputs - minimum) ** 2
        return (curved + noise * outputs).sum(dim=-1)


def _without_noise(minima: np.ndarray, curvatures: np.ndarray | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return inputs [n, dim] and targets [n, 2 or 3, dim]. minima: [n, dim]. curvatures: [n, dim], of workers."""
    rows = [torch.from_numpy(minima).to(dtype), torch.zeros(minima.shape, dtype=dtype)]
    if curvatures is not None:
        rows.append(torch.from_numpy(curvatures).to(dtype))
    return rows[1], torch.stack(rows, dim=1)
