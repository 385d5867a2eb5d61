"""A shard of the parameter server, for every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


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
