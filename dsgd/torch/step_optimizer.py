"""The step of a distributed model as an optimiser of torch, for trainers that call `optimizer.step()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dsgd.torch.own_loop import DistributedModel


class AlgorithmOptimizer(torch.optim.Optimizer):
    """Make the step of a distributed model where an optimiser's step is expected.

    Parameter groups and state are those of the local optimiser, so that schedulers change its rate. `state_dict` is
    the local optimiser's alone: `model.state_dict()` of every rank has the rest."""

    def __init__(self, model: DistributedModel) -> None:
        self.model = model
        super().__init__(model.optimizer.param_groups, dict(model.optimizer.defaults))
        self.state = model.optimizer.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Call the closure, which computes gradients, then make the step. Returns what the closure does."""
        result = None if closure is None else torch.enable_grad()(closure)()
        self.model.step()
        return result

    def state_dict(self) -> dict[str, Any]:
        return self.model.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.model.optimizer.load_state_dict(state_dict)
        self.param_groups, self.state = self.model.optimizer.param_groups, self.model.optimizer.state
