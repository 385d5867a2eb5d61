"""Networks and data that users bring, for `gradients.py`: all named by their import path."""

from __future__ import annotations

import gzip
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # of Debian's package dataset-fashion-mnist
GENERATED = 4096  # images, where it is not installed


def fashion_mnist() -> tuple[TensorDataset, TensorDataset]:
    """Return Fashion-MNIST, [1, 28, 28], as sets in memory; images of its shape where it is not installed."""
    if FASHION_MNIST.is_dir():
        return _fashion_mnist("train"), _fashion_mnist("t10k")
    whole = images((1, 28, 28))
    return whole, whole


def _fashion_mnist(part: str) -> TensorDataset:
    images, labels = (
        gzip.decompress((FASHION_MNIST / f"{part}-{name}.gz").read_bytes())
        for name in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    pixels = torch.frombuffer(bytearray(images[16:]), dtype=torch.uint8)
    return TensorDataset(pixels.view(-1, 1, 28, 28) / 255, torch.tensor(list(labels[8:])))


def color_images() -> tuple[TensorDataset, TensorDataset]:
    """Return generated images [3, 32, 32] of ten classes."""
    whole = images((3, 32, 32))
    return whole, whole


def images(shape: tuple[int, int, int]) -> TensorDataset:
    """Return images of noise around a mean for each of ten classes."""
    noise = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (GENERATED,), generator=noise)
    means = torch.rand(10, *shape, generator=noise)
    return TensorDataset(means[labels] + 0.1 * torch.randn(GENERATED, *shape, generator=noise), labels)


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.GroupNorm(8, channels),
            nn.GELU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.GroupNorm(8, channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x + self.convs(x))


class ConvNet(nn.Module):
    """A residual network with group norm, GELU and dropout, as users write it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            ResidualBlock(32),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            ResidualBlock(64),
            nn.Conv2d(64, 64, 3, stride=2, padding=1),
            ResidualBlock(64),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.1),
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Convolutions(nn.Module):
    """The convolutions of ResNet-20, one after the other, without what is between them."""

    def __init__(self) -> None:
        super().__init__()
        layers = [_conv(3, 16), *(_conv(16, 16) for _ in range(6))]
        layers += [_conv(16, 32, 2), *(_conv(32, 32) for _ in range(5))]
        layers += [_conv(32, 64, 2), *(_conv(64, 64) for _ in range(5))]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
