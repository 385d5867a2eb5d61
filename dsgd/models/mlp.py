"""Build fully connected networks with ReLU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def multilayer_perceptron(hidden: Sequence[int], input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Build [b, *input_shape] -> [b, classes] logits, with a hidden layer per entry of `hidden` (none: linear)."""
    widths = [math.prod(input_shape), *hidden, classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])  # the logits are not rectified
