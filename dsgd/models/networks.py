"""Build the networks of dsgd itself: fully connected ones, residual ones for small images, and a parameter vector.

Only out-of-place operations and no branch on values: the modules run under torch.func.functional_call, and torch.fx
traces them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def multilayer_perceptron(hidden: Sequence[int], input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Build [b, *input_shape] -> [b, classes] logits, with a hidden layer per entry of `hidden` (none: linear)."""
    widths = [math.prod(input_shape), *hidden, classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])  # the logits are not rectified


class FreeVector(nn.Module):
    """One parameter `x` [dim], from 0. The output is x whatever the input: [b, ...] -> [b, dim]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dim))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.x.expand(inputs.shape[0], -1)


class CifarResNet(nn.Module):
    """Residual network for small images: [b, channels, height, width] -> [b, classes] logits; at least 8 x 8 pixels.

    Source: He et al. 2015, "Deep residual learning", arXiv 1512.03385, section 4.2. A 3 x 3 convolution, three stages
    of n blocks at w, 2w and 4w channels (each stage halves the image), the mean over pixels, one linear layer: 6n + 2
    weighted layers. Shortcuts are the paper's option A: where a stage begins they take every second pixel and pad the
    new channels with zeros, so they have no parameters. At w = 16, 3 colours and 10 classes, ResNet-20 has 269,722
    parameters, ResNet-56 853,018."""

    def __init__(self, depth: int, width: int, norm: str, channels: int, classes: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        inputs = width
        for outputs in (width, 2 * width, 4 * width):
            for _ in range((depth - 2) // 6):
                blocks.append(Block(inputs, outputs, norm))
                inputs = outputs
        self.conv = _conv3x3(channels, width)
        self.norm = _norm(norm, width)
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(images)))
        return self.linear(self.blocks(x).mean(dim=(2, 3)))


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut; halves the image exactly where it widens the channels."""

    def __init__(self, inputs: int, outputs: int, norm: str) -> None:
        super().__init__()
        self.stride = 1 if inputs == outputs else 2
        self.extra_channels = outputs - inputs
        self.conv1 = _conv3x3(inputs, outputs, self.stride)
        self.norm1 = _norm(norm, outputs)
        self.conv2 = _conv3x3(outputs, outputs)
        self.norm2 = _norm(norm, outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.extra_channels:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra_channels))
        return F.relu(x + y)


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(math.gcd(8, channels), channels)  # 8 groups, fewer where 8 does not divide the channels
