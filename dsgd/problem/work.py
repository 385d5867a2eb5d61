"""Count the arithmetic of a gradient."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from dsgd.problem.model_failed import ModelFailed
from dsgd.problem.problem import Problem


@torch.no_grad()
def multiply_adds(problem: Problem) -> int:
    """Return the multiply-adds of the layers with weights in the forward pass of one batch; the backward pass takes
    about twice as many."""
    inputs, _ = problem.data.batch(0, 0)
    with suppress(ModelFailed):  # without a copy: the passes of a run begin with its vectors, whatever this one changes
        problem = problem.twin()
    problem.state.train(False)
    module, counts = problem.module, []

    def count(layer: nn.Module, arguments: Any, output: Any) -> None:
        each = [weight.numel() // len(weight) for weight in layer.parameters(recurse=False) if weight.dim() > 0]
        if each and isinstance(output, Tensor):
            counts.append(output.numel() * max(each))  # every output is a sum over the weights of its channel

    if isinstance(module, torch.jit.ScriptModule):  # has no hooks: as if each weight served once
        return len(inputs) * sum(weight.numel() for weight in module.parameters() if weight.dim() > 1)
    # an embedding looks its weights up
    uncounted = nn.Embedding, torch.jit.ScriptModule
    hooks = [layer.register_forward_hook(count) for layer in module.modules() if not isinstance(layer, uncounted)]
    with torch.random.fork_rng(devices=[]):
        module(inputs[:1])
    for hook in hooks:
        hook.remove()
    return sum(counts) * len(inputs)
