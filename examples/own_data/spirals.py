"""Data and a model of one's own: three spirals in the plane, told apart by a small network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

CLASSES = 3


def load(samples: int = 1200, noise: float = 0.15) -> tuple[TensorDataset, TensorDataset]:
    """Return the data for training and for test, a fifth. noise: standard deviation; the spirals have a radius of 2."""
    random = torch.Generator().manual_seed(0)
    inputs, labels = _spirals(samples, noise, random)
    test = samples // 5
    return TensorDataset(inputs[test:], labels[test:]), TensorDataset(inputs[:test], labels[:test])


def network(width: int = 32) -> nn.Module:
    """Return a network of two hidden layers: [b, 2] -> [b, 3]."""
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, CLASSES))


def _spirals(samples: int, noise: float, random: torch.Generator) -> tuple[Tensor, Tensor]:
    labels = torch.arange(samples) % CLASSES
    radius = 2 * torch.rand(samples, generator=random).sqrt()
    angle = 2 * radius + labels * (2 * torch.pi / CLASSES)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return points + noise * torch.randn(samples, 2, generator=random), labels
