"""What batch norms count in training, for evaluators that compute without the module."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

from dsgd.gradients.tracing import ModuleTrace
from dsgd.problem.slots import Slot
from dsgd.problem.state import WORD, ModuleState, word_count

_COUNTING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class BatchCounters:
    """Count batches in the buffers of several models.

    more: how much a training pass adds to each word of 8 bytes of the buffers that are stored as bytes."""

    def __init__(self, state: ModuleState, more: Tensor) -> None:
        self._numbers, self._more = state.numbers, more

    @classmethod
    def from_trace(cls, trace: ModuleTrace) -> BatchCounters:
        """Return those of the norms that a forward pass calls."""
        calls = Counter(id(trace.modules[str(node.target)]) for node in trace.graph.nodes if node.op == "call_module")
        state = trace.problem.state
        more = torch.zeros(sum(map(word_count, state.others)), dtype=torch.int64)
        for slot in state.others:
            if _counts(slot):
                more[slot.start // WORD] = calls[id(slot.owner)]
        return cls(state, more)

    def count(self, buffers: Tensor) -> None:
        """Count one more batch in the buffers [n, nb] of n models, in place."""
        if self._more.any():
            stored = buffers[:, self._numbers :]
            counted = stored.to(torch.uint8).flatten().view(torch.int64).view(len(buffers), -1)
            stored.copy_((counted + self._more.to(buffers.device)).view(torch.uint8))


def _counts(slot: Slot) -> bool:
    """Tell whether a buffer is the counter of a batch norm that does not read it."""
    owner = slot.owner
    return slot.name == "num_batches_tracked" and type(owner) in _COUNTING and owner.momentum is not None
