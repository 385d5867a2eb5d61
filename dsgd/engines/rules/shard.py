"""A shard of the parameter server, for every engine: its operations, and the way of a call's vector to and from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def parts_of(vector: Tensor | None, shards: int) -> list[Tensor | None]:
    """Split the vector of a call into one part for each shard, in order; a call without a vector has parts without."""
    return [None] * shards if vector is None else [*vector.tensor_split(shards)]


def joined(answers: Mapping[int, Tensor | None]) -> Tensor | None:
    """Return the answer of all shards to one call. answers: of each shard, by number; None where it has none."""
    parts = [part for _, part in sorted(answers.items()) if part is not None]
    return None if not parts else parts[0] if len(parts) == 1 else torch.cat(parts)


class Shard:
    """Serve one range of the vector with the algorithm's server object, and count versions to measure staleness."""

    def __init__(self, server: Any, nodes: int) -> None:
        self.server = server
        self.version = 0  # updates applied so far
        self.read = [0] * nodes  # the version that each worker last read

    def serve(
        self, rank: int, operation: str, part: Tensor | None, scalars: tuple[float, ...]
    ) -> tuple[Tensor | None, int]:
        """Run one atomic operation. Returns its answer, and the number of updates since this worker's last read."""
        arguments = scalars if part is None else (part, *scalars)
        staleness = self.version - self.read[rank]
        answer = getattr(self.server, operation)(*arguments)
        self.version += part is not None
        if answer is not None:
            self.read[rank] = self.version
        return answer, staleness
