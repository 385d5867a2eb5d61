"""Evaluates several gradients in one call by torch.vmap, for any module that torch.func can transform."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value

from dsgd.data.protocols import stacked_batches
from dsgd.gradients.batch_counters import BatchCounters
from dsgd.gradients.batch_invariance import batch_invariant_sizes
from dsgd.gradients.pending import PendingGradient
from dsgd.gradients.tracing import one_line
from dsgd.problem.problem import Problem

# Every call has this many rows, the last call padded by repetition: torch chooses kernels by size, so results that must
# not depend on how many gradients are pending must all be computed at one size.
ROWS = 8


class VmapEvaluator:
    """Evaluate gradients by vmap of torch.func.grad_and_value, `ROWS` at once."""

    device = torch.device("cpu")

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._gradients = torch.vmap(grad_and_value(self._loss, has_aux=True), randomness="error")
        # batch norm counts its batches, in place: each call gets its own counters
        self._others = {k: b.clone() for k, b in problem.module.named_buffers() if not b.is_floating_point()}

    @cached_property
    def _counters(self) -> BatchCounters:
        return BatchCounters.measured(self.problem)

    def _loss(self, x: Tensor, buffers: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        problem = self.problem
        state = {slot.path: slot.view(x) for slot in problem.parameters}
        # clones, because vmap loses what batch norm writes into a part of a larger tensor
        state |= {slot.path: slot.view(buffers).clone() for slot in problem.buffers}
        state |= {path: counter.clone() for path, counter in self._others.items()}
        outputs = functional_call(problem.module, state, (inputs,))
        changed = [state[slot.path].reshape(-1) for slot in problem.buffers]
        return problem.data.loss(outputs, targets), torch.cat([*changed, buffers[problem.state.numbers :]])

    def failure(self) -> str | None:
        """Try the module on examples. Returns why it cannot be evaluated this way, in one line; None if it can."""
        try:
            if not batch_invariant_sizes(self.problem, ROWS, [ROWS], lambda pending, _: self.evaluate(pending)):
                return "its gradients depend on what is computed with them"
        except Exception as error:  # of the user's module, under a transformation that its author never saw
            return one_line(error)
        return None

    def evaluate(self, pending: Sequence[PendingGradient]) -> None:
        problem = self.problem
        problem.state.bind(problem.start, problem.start_buffers.clone())
        problem.module.train()
        for begin in range(0, len(pending), ROWS):
            group = pending[begin : begin + ROWS]
            rows = [*group, *[group[-1]] * (ROWS - len(group))]
            x = torch.stack([row.snapshot for row in rows if row.snapshot is not None])
            inputs, targets = stacked_batches(problem.data, [row.rank for row in rows], [row.step for row in rows])
            buffers = torch.stack([row.buffers for row in rows])
            g, (losses, changed) = self._gradients(x, buffers, inputs, targets)
            self._counters.count(changed)
            problem.add_decay(g, x)
            for row, item in enumerate(group):
                item.set(g[row].clone(), changed[row].clone(), losses[row])
