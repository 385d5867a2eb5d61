"""Define a model that is nothing but a parameter vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FreeVector(nn.Module):
    """One parameter `x` [dim], from 0. The output is x whatever the input: [b, ...] -> [b, dim]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dim))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.x.expand(inputs.shape[0], -1)
