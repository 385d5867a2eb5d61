"""Build the networks of dsgd itself: fully connected ones, residual ones for small images, a small decoder-only
transformer, and a parameter vector.

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

DEVIATION = 0.02  # of the initial weights, as in GPT-2


def multilayer_perceptron(hidden: Sequence[int], input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Build [b, *input_shape] -> [b, classes] logits, with a hidden layer per entry of `hidden` (none: linear)."""
    widths = [math.prod(input_shape), *hidden, classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])  # the logits are not rectified


class FreeVector(nn.Module):
    """One parameter `x` [dim], from 0. The output is x for any input: [b, ...] -> [b, dim]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dim))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.x.expand(inputs.shape[0], -1)


class CifarResNet(nn.Module):
    """Residual network for small images: [b, channels, height, width] -> [b, classes] logits; at least 8 x 8 pixels.

    Source: He et al. 2015, "Deep residual learning", arXiv 1512.03385, section 4.2. A 3 x 3 convolution, three stages
    of n blocks at w, 2w and 4w channels (each stage halves the image), the mean over pixels, one linear layer: 6n + 2
    weighted layers. Shortcuts are the paper's option A: at the start of a stage they take every second pixel and pad
    the new channels with zeros, so they have no parameters. At w = 16, 3 colours and 10 classes, ResNet-20 has 269,722
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
    """Two 3 x 3 convolutions with a shortcut; halves the image exactly where it widens the channels."""

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
    return nn.GroupNorm(math.gcd(8, channels), channels)  # 8 groups, fewer if 8 does not divide the channels


class Transformer(nn.Module):
    """Decoder-only transformer: tokens [b, context] -> logits [b, classes, context] of the token after each.

    Source: Radford et al. 2019 (GPT-2): layer norm before attention and before the multilayer perceptron (pre-norm) and
    before the head, GELU, learned positions. Weights are from N(0, 0.02^2), divided by sqrt(2 depth) at the end of a
    residual branch; biases are 0. The head's weights are not tied: with a vocabulary of bytes, tying saves few
    parameters."""

    def __init__(self, classes: int, context: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, depth) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = linear(width, classes, bias=False)
        for table in (self.embedding, self.positions):
            nn.init.normal_(table.weight, std=DEVIATION)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.blocks(self.embedding(tokens) + self.positions.weight)
        return self.head(self.norm(x)).transpose(1, 2)


class TransformerBlock(nn.Module):
    """Causal self-attention and a multilayer perceptron of four times the width, each with a shortcut."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (linear(width, width) for _ in range(3))
        self.mixed = linear(width, width, ends_branch_of=depth)
        self.hidden = linear(width, 4 * width)
        self.narrowed = linear(4 * width, width, ends_branch_of=depth)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (self._split(project(y)) for project in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mixed(y.transpose(1, 2).flatten(2))
        return x + self.narrowed(F.gelu(self.hidden(self.norm2(x))))

    def _split(self, x: Tensor) -> Tensor:
        """Return [b, heads, context, width of a head] of [b, context, width]."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


def linear(inputs: int, outputs: int, bias: bool = True, ends_branch_of: int | None = None) -> nn.Linear:
    """Build a linear layer. ends_branch_of: the depth of the network, for the last layer of a residual branch."""
    layer = nn.Linear(inputs, outputs, bias)
    nn.init.normal_(layer.weight, std=DEVIATION / (2 * ends_branch_of) ** 0.5 if ends_branch_of else DEVIATION)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
