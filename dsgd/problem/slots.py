"""Places of a module's parameters and buffers in flat vectors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Slot:
    """Locate a parameter or buffer in its flat vector. channels_last: its four axes o, c, h, w are stored in the order
    o, h, w, c."""

    owner: nn.Module
    name: str  # within the owner
    path: str  # within the whole module
    start: int
    shape: torch.Size
    channels_last: bool = False

    @property
    def layout(self) -> tuple[int, ...]:
        """Its shape as it lies in the flat vector."""
        if not self.channels_last:
            return tuple(self.shape)
        o, c, h, w = self.shape
        return o, h, w, c

    def view(self, flat: Tensor, begin: int = 0) -> Tensor:
        """Return its view of a flat vector, or of a range of one that starts at `begin`."""
        start = self.start - begin
        part = flat[start : start + self.shape.numel()]
        if not self.channels_last:
            return part.view(self.shape)
        o, c, h, w = self.shape
        return part.view(o, h, w, c).permute(0, 3, 1, 2)
