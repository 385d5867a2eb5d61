"""Update parameters on a worker: SGD on a flat vector, in the form of torch.optim.SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 1e30  # of a rate: products of it with others are still floats of 32 bits


@dataclass(frozen=True)
class SGD:
    """`optimizer.*`, and the update that it describes."""

    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0  # added to the gradient where it is taken
    decay_norm_and_bias: bool = True  # false: leaves normalisation parameters and biases out of the decay

    def __post_init__(self) -> None:
        if not 0 <= self.lr <= LARGEST:
            raise ValueError(f"lr must be in [0, {LARGEST:g}], got {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov must be false when optimizer.momentum is 0, got true")
        if not 0 <= self.weight_decay <= LARGEST:
            raise ValueError(f"weight_decay must be in [0, {LARGEST:g}], got {self.weight_decay}")

    def step(self, x: Tensor, g: Tensor, velocity: Tensor | None, lr: float) -> Tensor | None:
        """Update x [d] in place with the gradient g [d] (read only): v = mu v + g; x = x - lr v, or with Nesterov
        x = x - lr (g + mu v). Returns v, the momentum buffer to pass to the next step; None without momentum."""
        if self.momentum == 0:
            x.add_(g, alpha=-lr)
            return None
        velocity = g.clone() if velocity is None else velocity.mul_(self.momentum).add_(g)
        if self.nesterov:
            x.add_(g, alpha=-lr).add_(velocity, alpha=-lr * self.momentum)
        else:
            x.add_(velocity, alpha=-lr)
        return velocity
