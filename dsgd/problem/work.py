"""Count the arithmetic of a gradient."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from dsgd.problem.problem import Problem


@torch.no_grad()
def multiply_adds(problem: Problem) -> int:
    """Return the multiply-adds of the layers with weights in the forward pass of one batch; the backward pass takes
    about twice as many."""
    inputs, _ = problem.data.batch(0, 0)
    module, counts = copy.deepcopy(problem.module).eval(), []

    def count(layer: nn.Module, arguments: Any, output: Any) -> None:
        each = [weight.numel() // len(weight) for weight in layer.parameters(recurse=False) if weight.dim() > 0]
        if each and isinstance(output, Tensor):
            counts.append(output.numel() * max(each))  # every output is a sum over the weights of its channel

    for layer in module.modules():
        if not isinstance(layer, nn.Embedding):  # which looks its weights up
            layer.register_forward_hook(count)
    with torch.random.fork_rng(devices=[]):
        module(inputs[:1])
    return sum(counts) * len(inputs)
