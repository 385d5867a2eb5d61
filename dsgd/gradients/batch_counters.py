"""What batch norms count in training, for evaluators that compute without the module."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

from dsgd.gradients.tracing import ModuleTrace
from dsgd.problem.problem import Problem
from dsgd.problem.slots import Slot
from dsgd.problem.state import WORD, ModuleState, words

_COUNTING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class BatchCounters:
    """Count batches in the buffers of several models.

    more: how much a training pass adds to each word of 8 bytes of the buffers that are stored as bytes."""

    def __init__(self, state: ModuleState, more: Tensor) -> None:
        self._numbers, self._more = state.numbers, more

    @classmethod
    def of(cls, trace: ModuleTrace) -> BatchCounters:
        """Return those of the norms that a forward pass calls."""
        calls = Counter(id(trace.modules[str(node.target)]) for node in trace.graph.nodes if node.op == "call_module")
        state = trace.problem.state
        more = torch.zeros(sum(map(words, state.others)), dtype=torch.int64)
        for slot in state.others:
            if _counts(slot):
                more[slot.start // WORD] = calls[id(slot.owner)]
        return cls(state, more)

    @classmethod
    def measured(cls, problem: Problem) -> BatchCounters:
        """Return those of the norms of a module, by a training pass of a copy. Raises ValueError for a module that
        counts something else, or changes what is no number."""
        twin, buffers = problem.twin(), problem.start_buffers.clone()
        inputs, targets = twin.data.batch(0, 0)
        twin.gradient_of_batch(twin.start.clone(), buffers, inputs, targets)
        before, after = (
            of[twin.state.numbers :].to(torch.uint8).view(torch.int64) for of in (twin.start_buffers, buffers)
        )
        more = after - before
        counted = [slot.start // WORD for slot in twin.state.others if _counts(slot)]
        changed = set(more.nonzero().flatten().tolist()) - set(counted)
        if changed:
            names = [slot.path for slot in twin.state.others if slot.start // WORD in changed]
            raise ValueError(f"the buffer {', '.join(names)} changes in training")
        return cls(problem.state, more)

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
