"""Whether it changes a bit of a gradient what it is evaluated together with: tried on examples, before a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dsgd.gradients.pending import Wanted
from dsgd.problem.problem import Problem

ENTRIES = 1 << 17  # of gradients that are compared: in a small model few last bits show, so more examples are needed
MOST_ROUNDS = 16
Point = tuple[Tensor, Tensor]  # a vector [d], and buffers [nb]


def points(problem: Problem, count: int, seed: int = 0, dtype: torch.dtype | None = None) -> list[Point]:
    """Around the start, each another."""
    noise = torch.Generator().manual_seed(seed)
    dtype = dtype or problem.dtype
    found: list[Point] = []
    for _ in range(count):
        x = problem.start + 0.05 * torch.randn(problem.dimension, generator=noise)
        buffers = problem.start_buffers + torch.rand(problem.start_buffers.numel(), generator=noise)
        found.append((x.to(dtype), buffers.to(dtype)))
    return found


def alike(problem: Problem, most: int, sizes: Sequence[int], fulfil: Callable[[list[Wanted], int], None]) -> list[int]:
    """Those of the sizes (<= most) at which gradients have the bits that they have among `most`, whatever their place.

    fulfil(wanted, size): evaluates up to `size` of them in one call of that size."""
    left = list(sizes)
    for seed in range(min(MOST_ROUNDS, max(1, ENTRIES // (most * problem.dimension)))):
        drawn = points(problem, most, seed)
        expected = _wanted(drawn)
        fulfil(expected, most)
        left = [size for size in left if _same(expected[::-1], _wanted(drawn[::-1][:size]), fulfil)]
    return left


def _wanted(at: Sequence[Point]) -> list[Wanted]:
    return [Wanted(0, 0, x, buffers.clone()) for x, buffers in at]


def _same(expected: list[Wanted], group: list[Wanted], fulfil: Callable[[list[Wanted], int], None]) -> bool:
    """Whether the first of those expected, in places other than before, come out the same."""
    fulfil(group, len(group))
    return all(
        torch.equal(item.value, right.value) and torch.equal(item.buffers, right.buffers)  # pyright: ignore
        for item, right in zip(group, expected, strict=False)
    )
