"""The module itself, called with given parameters in double precision: what the faster evaluators are verified with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from dsgd.problem.problem import Problem

EXACT = 1e-9  # of float64, relative to the largest entry
ParameterPoint = tuple[Tensor, Tensor]  # a vector [d], and buffers [nb]


def random_points(
    problem: Problem, count: int, seed: int = 0, dtype: torch.dtype | None = None
) -> list[ParameterPoint]:
    """Draw different points around the initial vector and buffers."""
    noise = torch.Generator().manual_seed(seed)
    dtype = dtype or problem.dtype
    points: list[ParameterPoint] = []
    numbers = problem.state.numbers
    for _ in range(count):
        x = problem.start + 0.05 * torch.randn(problem.dimension, generator=noise)
        buffers = problem.start_buffers.clone()
        buffers[:numbers] += torch.rand(numbers, generator=noise)
        points.append((x.to(dtype), buffers.to(dtype)))
    return points


def plain_outputs(
    problem: Problem, parameters: Sequence[Tensor], buffers: Sequence[Tensor], inputs: Tensor, training: bool
) -> Tensor:
    """Return the module's own outputs with these parameters and buffers, which change in training."""
    state = {slot.path: value for slot, value in zip(problem.parameters, parameters, strict=True)}
    state |= {slot.path: value for slot, value in zip(problem.buffers, buffers, strict=True)}
    for path, value in (*problem.module.named_parameters(), *problem.module.named_buffers()):
        if path not in state:  # counters, which change; what does not train
            state[path] = value.detach().to(torch.float64 if value.is_floating_point() else value.dtype, copy=True)
    problem.state.train(training)
    return functional_call(problem.module, state, (inputs,))


def plain_gradient(
    problem: Problem, x: Tensor, buffers: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient [d] without weight decay at x [d], the buffers [nb] after the forward pass, and the loss."""
    x, buffers = x.clone().requires_grad_(), buffers.clone()
    parameters = [slot.view(x) for slot in problem.parameters]
    statistics = [slot.view(buffers) for slot in problem.buffers]
    loss = problem.data.loss(plain_outputs(problem, parameters, statistics, inputs, True), targets)
    (g,) = torch.autograd.grad(loss, x)
    return g, buffers, loss.detach()


def is_exact(value: Tensor, right: Tensor, scale: float) -> bool:
    """Tell whether values are right to rounding. scale: of the largest entry, or 1."""
    return value.shape == right.shape and torch.allclose(value, right, rtol=0, atol=EXACT * max(scale, 1.0))
