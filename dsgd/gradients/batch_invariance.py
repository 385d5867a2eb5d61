"""Check that a gradient is bitwise independent of what it is batched with: on examples, before a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dsgd.gradients.pending import PendingGradient
from dsgd.problem.problem import Problem

ENTRIES = 1 << 17  # of gradients that are compared: small models differ in few last bits, and need more examples
MOST_ROUNDS = 16
Point = tuple[Tensor, Tensor]  # a vector [d], and buffers [nb]


def random_points(problem: Problem, count: int, seed: int = 0, dtype: torch.dtype | None = None) -> list[Point]:
    """Draw different points around the initial vector and buffers."""
    noise = torch.Generator().manual_seed(seed)
    dtype = dtype or problem.dtype
    found: list[Point] = []
    numbers = problem.state.numbers
    for _ in range(count):
        x = problem.start + 0.05 * torch.randn(problem.dimension, generator=noise)
        buffers = problem.start_buffers.clone()
        buffers[:numbers] += torch.rand(numbers, generator=noise)
        found.append((x.to(dtype), buffers.to(dtype)))
    return found


def batch_invariant_sizes(
    problem: Problem, most: int, sizes: Sequence[int], evaluate: Callable[[list[PendingGradient], int], None]
) -> list[int]:
    """Return the batch sizes (<= most) at which gradients are bitwise equal to those at size `most`, at any place.

    evaluate(pending, size): evaluates up to `size` gradients in one call of that size."""
    invariant = list(sizes)
    for seed in range(min(MOST_ROUNDS, max(1, ENTRIES // (most * problem.dimension)))):
        points = random_points(problem, most, seed)

        def gradients(at: Sequence[Point], size: int) -> list[PendingGradient]:
            pending = [PendingGradient(0, 0, x, buffers.clone()) for x, buffers in at]
            evaluate(pending, size)
            return pending

        expected = gradients(points, most)[::-1]
        points.reverse()  # so that every point has another place than before
        invariant = [size for size in invariant if _equal(gradients(points[:size], size), expected)]
    return invariant


def _equal(found: list[PendingGradient], expected: list[PendingGradient]) -> bool:
    """Compare gradients and buffers bit by bit with the first of those expected."""
    return all(
        torch.equal(item.value, right.value) and torch.equal(item.buffers, right.buffers)  # pyright: ignore
        for item, right in zip(found, expected, strict=False)
    )
