"""N models of one module as one stacked network: every layer of its forward pass serves all models in one call.

The module is traced (`dsgd.gradients.tracing`), once for training and once for evaluation, and every layer is replaced
by its counterpart for N models (`dsgd.gradients.layers`). A layer without one, and a module that cannot be traced,
raise `Unstackable`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dsgd.gradients.batch_counters import BatchCounters
from dsgd.gradients.layers import translate
from dsgd.gradients.tracing import ModuleTrace, StackedCall
from dsgd.problem.problem import Problem


class StackedNetwork:
    """Compute the outputs of N models in training or in evaluation.

    In training, inputs are [n, b, *input_shape], in evaluation [b, *input_shape], the same for all models. Outputs are
    [n, b, ...]. counters: of its batch norms. largest: numbers in the largest activation of one
    model, per sample. Raises Unstackable.
    """

    def __init__(self, problem: Problem, training: bool) -> None:
        trace = ModuleTrace(problem, training)
        self.counters = BatchCounters.of(trace)
        for node in trace.graph.nodes:
            if node.op == "output":
                self._output = trace.output(node)
            elif node.op not in ("placeholder", "get_attr") and trace.is_tensor(node):
                trace.add(node, *translate(trace, node))
        self._steps = list(zip(trace.steps, trace.unread_after(), strict=True))
        self._training = training
        self.largest = trace.largest

    def __call__(self, parameters: Sequence[Tensor], buffers: Sequence[Tensor], n: int, inputs: Tensor) -> Tensor:
        call = StackedCall(n, inputs.shape[1 if self._training else 0], inputs, parameters, buffers, [inputs])
        for step, unread in self._steps:
            call.values.append(step(call))
            for place in unread:
                call.values[place] = None
        return self._output(call)
