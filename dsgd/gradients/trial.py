"""Whether it changes a bit of a gradient what it is evaluated together with: tried on examples, before a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dsgd.gradients import Wanted
from dsgd.gradients.problem import Problem

ENTRIES = 1 << 17  # of gradients that are compared: in a small model few last bits show, so more examples are needed
MOST_ROUNDS = 16


def examples(problem: Problem, count: int, seed: int = 0, dtype: torch.dtype | None = None) -> list[Wanted]:
    """Gradients at points around the start, each another."""
    noise = torch.Generator().manual_seed(seed)
    dtype = dtype or problem.dtype
    found: list[Wanted] = []
    for _ in range(count):
        x = problem.start + 0.05 * torch.randn(problem.dimension, generator=noise)
        buffers = problem.start_buffers + torch.rand(problem.start_buffers.numel(), generator=noise)
        found.append(Wanted(0, 0, x.to(dtype), buffers.to(dtype)))
    return found


def alike(problem: Problem, most: int, sizes: Sequence[int], fulfil: Callable[[list[Wanted], int], None]) -> list[int]:
    """Those of the sizes (<= most) at which gradients have the bits that they have among `most`, whatever their place.

    fulfil(wanted, size): evaluates up to `size` of them in one call of that size."""
    left = list(sizes)
    for seed in range(min(MOST_ROUNDS, max(1, ENTRIES // (most * problem.dimension)))):
        items = examples(problem, most, seed)
        fulfil(items, most)
        left = [size for size in left if _same(items, examples(problem, most, seed), size, fulfil)]
    return left


def _same(expected: list[Wanted], again: list[Wanted], size: int, fulfil: Callable[[list[Wanted], int], None]) -> bool:
    """Whether the last of them, in places other than before, come out the same."""
    group = again[::-1][:size]
    fulfil(group, size)
    return all(
        torch.equal(item.value, right.value) and torch.equal(item.buffers, right.buffers)  # pyright: ignore
        for item, right in zip(group, expected[::-1], strict=False)
    )
