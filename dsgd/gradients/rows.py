"""Vectors of several models as rows of one matrix, aligned as `batched_matmul` needs its matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dsgd.gradients.unfolded import ALIGNED


def repeat_as_rows(vector: Tensor, n: int) -> list[Tensor]:
    """Return n copies of a vector [d] that `stack_rows` can stack without copying."""
    rows = vector.new_empty(n, len(vector) + -len(vector) % ALIGNED)[:, : len(vector)]
    return list(rows.copy_(vector.expand_as(rows)))


def stack_rows(vectors: Sequence[Tensor]) -> Tensor:
    """Stack vectors [d] to [n, d] with aligned rows; a view if they are consecutive rows of one matrix already."""
    n, d = len(vectors), len(vectors[0])
    storages = {vector.untyped_storage().data_ptr() for vector in vectors}
    begins = [vector.storage_offset() for vector in vectors]
    step = begins[1] - begins[0] if n > 1 else d + -d % ALIGNED
    aligned = step >= d and not (step % ALIGNED or begins[0] % ALIGNED)
    if aligned and len(storages) == 1 and begins == [begins[0] + row * step for row in range(n)]:
        return vectors[0].as_strided((n, d), (step, 1))
    gap = vectors[0].new_zeros(-d % ALIGNED)
    if not len(gap):
        return torch.stack(list(vectors))
    return torch.cat([part for vector in vectors for part in (vector, gap)]).view(n, -1)[:, :d]
