"""What a worker counts of its messages: bytes, staleness, and those that were lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


class Traffic:
    """Counts the messages that one worker has begun, when its algorithm goes on: so a checkpoint counts a message at
    both ends or not at all. A process that takes the place of another goes on with its counters."""

    def __init__(self, rank: int, nodes: int) -> None:
        """nodes: workers and servers."""
        self._rank = rank
        self._sent, self._received = [0] * nodes, [0] * nodes  # bytes, by the nodes that sent and received them
        self._reduced = 0  # bytes of the vectors given to collectives
        self._staleness = [0, 0, 0]  # sum, count, largest
        self._missed = 0  # pulls, pushes and asks that failed

    def moved(self, source: int, target: int, vector: Tensor) -> None:
        """Count a vector that has gone from one node to another."""
        self._sent[source] += vector.nbytes
        self._received[target] += vector.nbytes

    def reduced(self, vector: Tensor) -> None:
        """Count a vector that this worker gives to a collective."""
        self._reduced += vector.nbytes

    def stale(self, staleness: int, times: int = 1) -> None:
        """Count the staleness of one message, in steps; of several with the same: times."""
        self._staleness[0] += staleness * times
        self._staleness[1] += times
        self._staleness[2] = max(self._staleness[2], staleness)

    def missed(self, sent: Tensor | None = None) -> None:
        """Count a message that failed. sent: the vector that has gone all the same, to a full inbox."""
        self._missed += 1
        if sent is not None:
            self._sent[self._rank] += sent.nbytes

    def fields(self) -> dict[str, Any]:
        """Return the counters as marks and checkpoints have them."""
        return {
            "sent": list(self._sent),
            "received": list(self._received),
            "reduced": self._reduced,
            "staleness": list(self._staleness),
            "missed": self._missed,
        }

    def restore(self, counters: Mapping[str, Any]) -> None:
        """Go on with the counters of a process before this one; at the start of a run there are none."""
        self._sent = list(counters.get("sent", self._sent))
        self._received = list(counters.get("received", self._received))
        self._reduced = counters.get("reduced", 0)
        self._staleness = list(counters.get("staleness", (0, 0, 0)))
        self._missed = counters.get("missed", 0)
