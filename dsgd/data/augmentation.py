"""Move images by a few pixels and mirror them at random, as He et al. 2015 do for CIFAR (arXiv 1512.03385)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dsgd.streams import stream

PAD = 4  # pixels an augmented image may move in each direction


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
