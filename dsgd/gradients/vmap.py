"""Several models in one call by torch.vmap: for any module that torch.func can transform."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad

from dsgd.gradients.batch_invariance import alike
from dsgd.gradients.pending import Wanted
from dsgd.problem.problem import Problem

# Every call has this many rows, the last one filled up with repetitions: kernels are chosen by size, so a result that
# did not depend on how many were wanted together must always be computed at one size.
ROWS = 8


class Vmap:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._gradients = torch.vmap(grad(self._loss, has_aux=True), randomness="error")
        # batch norm counts its batches, in place: each call gets its own counters, which nobody reads
        self._counters = {k: b for k, b in problem.module.named_buffers() if not b.is_floating_point()}

    def _loss(self, x: Tensor, buffers: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        problem = self.problem
        state = {slot.path: slot.view(x) for slot in problem.parameters}
        # clones, because vmap loses what batch norm writes into a part of a larger tensor
        state |= {slot.path: slot.view(buffers).clone() for slot in problem.buffers}
        state |= {path: counter.clone() for path, counter in self._counters.items()}
        outputs = functional_call(problem.module, state, (inputs,))
        changed = [state[slot.path].reshape(-1) for slot in problem.buffers]
        return problem.data.loss(outputs, targets), torch.cat(changed) if changed else buffers

    def failure(self) -> str | None:
        """What torch.func says, in one line, if it cannot transform the module, or what else speaks against it; found
        out on examples."""
        try:
            if not alike(self.problem, ROWS, [ROWS], lambda wanted, _: self.evaluate(wanted)):
                return "its gradients depend on what is computed with them"
        except Exception as error:  # of the user's module, under a transformation that its author never saw
            return " ".join(str(error).split())[:120] or type(error).__name__
        return None

    def evaluate(self, wanted: Sequence[Wanted]) -> None:
        problem = self.problem
        problem.bind(problem.start, problem.start_buffers.clone())
        problem.module.train()
        for begin in range(0, len(wanted), ROWS):
            group = wanted[begin : begin + ROWS]
            rows = [*group, *[group[-1]] * (ROWS - len(group))]
            x = torch.stack([row.snapshot for row in rows if row.snapshot is not None])
            batches = [problem.data.batch(row.rank, row.step) for row in rows]
            inputs, targets = (torch.stack(column) for column in zip(*batches, strict=True))
            buffers = torch.stack([row.buffers for row in rows])
            g, changed = self._gradients(x, buffers, inputs, targets)
            problem.add_decay(g, x)
            for row, item in enumerate(group):
                item.fulfil(g[row].clone(), changed[row].clone())
