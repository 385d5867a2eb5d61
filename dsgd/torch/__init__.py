"""dsgd's algorithms in a training loop of the user's, over torch.distributed (docs/howto/own_loop.md).

model = dsgd.torch.distribute(model, optimizer, algo="diloco", options={"tau": 100})
for batch in loader:
    loss(model, batch).backward()
    model.step()

How it works. The module stays the user's: no parameter gets another storage, other strides or another value than the
optimiser or the algorithm gives it. The parameters are the truth, and dsgd has copies of them:

- g, the gradients, are buckets (`flat.py`). Hooks copy each gradient into its bucket as soon as the backward pass has
  accumulated it. `parameter.grad` is then the view of the bucket, as in DistributedDataParallel with
  `gradient_as_bucket_view`. After the step the parameters have no gradient. What has no gradient rests, as in torch.
- If the algorithm asks for a mean gradient, each bucket is summed as soon as it is complete (`overlapped_mean.py`).
  There is one sequence of sums for each step, the same on every rank: a rank that comes to `step()` without it makes
  it there. It ends with the sum of who has a gradient, so that a parameter rests if it has none on any rank.
- x, the parameters as the algorithm's vector, is made when the algorithm first asks for it, and never for `sync`. From
  then on it is read from the parameters before the algorithm goes on and after each local step, and written to them
  if the algorithm has changed it. An algorithm that has not seen x cannot be disturbed by a change of what is trained:
  for others, such a change is an error.

The algorithm begins with the first forward pass that trains, so that weights loaded until then count. All that is
refused, is refused in `unsupported.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dsgd.engines.torch.group_channel import CommunicationFailed
from dsgd.torch.own_loop import DistributedModel, distribute

__all__ = ["AlgorithmOptimizer", "CommunicationFailed", "DistributedModel", "distribute"]


class AlgorithmOptimizer(torch.optim.Optimizer):
    """Make the step of a distributed model for code that expects an optimiser.

    Parameter groups and state are the local optimiser's, so that schedulers change its rate. `state_dict` is
    the local optimiser's alone: `model.state_dict()` of every rank has the rest."""

    def __init__(self, model: DistributedModel) -> None:
        self.model = model
        super().__init__(model.optimizer.param_groups, dict(model.optimizer.defaults))
        self.state = model.optimizer.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Call the closure, which computes gradients, then make the step. Returns the closure's result."""
        result = None if closure is None else torch.enable_grad()(closure)()
        self.model.step()
        return result

    def state_dict(self) -> dict[str, Any]:
        return self.model.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.model.optimizer.load_state_dict(state_dict)
        self.param_groups, self.state = self.model.optimizer.param_groups, self.model.optimizer.state
