"""Trace of a module's forward pass, with the shape of every value and its layout when N models are stacked.

Layouts of the values of N models: `images` [b, N C, H, W], so that a convolution with N groups, one batch norm and one
pooling act on all models; `rows` [N, b, ...]; `columns` [N, ..., b] for matrix products (`dsgd.gradients.unfolded`);
`shared` [b, ...], the same for all models.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from dsgd.problem.model_failed import ModelFailed
from dsgd.problem.problem import Problem

BATCHES = (3, 5)  # the shapes for two batch sizes tell the batch axis from all others


class Unstackable(ValueError):
    """Raised for a module that cannot be stacked; the text names the layer."""


@dataclass
class StackedCall:
    """The values of one evaluation of N models. n: how many. samples: in a batch. parameters, buffers: [n, *shape] of
    every slot of the problem; buffers are contiguous and change in place in training. values: of every step so far."""

    n: int
    samples: int
    inputs: Tensor
    parameters: Sequence[Tensor]
    buffers: Sequence[Tensor]
    values: list[Any] = field(default_factory=list)


Read = Callable[[StackedCall], Tensor]
Step = tuple[Read, str]  # computes a value of N models; its layout


def source(node: fx.Node) -> fx.Node:
    """Return the first argument of a layer."""
    return node.args[0]  # pyright: ignore[reportReturnType]


class ModuleTrace:
    """Trace the forward pass of a problem's module, and record how each of its values is computed for N models.

    Layers are translated in order of the graph (`add`); a translation asks the trace for shapes, for constants, and for
    functions that read earlier values and parameters of all models. largest: numbers in the largest activation of one
    model, per sample. Raises Unstackable.
    """

    def __init__(self, problem: Problem, training: bool) -> None:
        self.training = training
        try:
            problem = problem.twin()  # the user's code may change its module whenever it runs, here too
        except ModelFailed as error:
            raise Unstackable(str(error)) from error
        self.problem = problem
        module = problem.module.train(training)
        with torch.random.fork_rng(devices=[]):
            before = torch.get_rng_state()
            try:
                self.graph = _Tracer().trace(module)
            except Exception as error:  # fx raises whatever a proxy cannot do in the user's own code
                name = type(module).__name__
                raise Unstackable(f"{name}.forward, which cannot be traced ({one_line(error)})") from error
            if not torch.equal(before, torch.get_rng_state()):  # they would be the same in every pass
                raise Unstackable(f"random numbers that {type(module).__name__}.forward draws")
        first, *others = [node for node in self.graph.nodes if node.op == "placeholder"]
        for node in others:
            if not node.args:
                raise Unstackable(f"the second argument {node.target} of {type(module).__name__}.forward")
        self.modules: dict[str, nn.Module] = dict(module.named_modules(remove_duplicate=False))
        self._parameters = {id(slot.owner._parameters[slot.name]): i for i, slot in enumerate(problem.parameters)}
        self._buffers = {id(slot.owner._buffers[slot.name]): i for i, slot in enumerate(problem.buffers)}
        self._results = _example_results(self.graph, module, training, problem)  # of each node, for both batch sizes
        for node in self.graph.nodes:
            if node.op.startswith("call") and not self.is_tensor(node) and not _is_plain(node):
                raise Unstackable(self.name(node))
        self._places: dict[fx.Node, int] = {first: 0}  # in StackedCall.values
        self._layouts: dict[fx.Node, str] = {first: "rows" if training else "shared"}
        self._replaced: dict[fx.Node, fx.Node] = {}  # a value changed in place, and the node that changed it
        self._last_read: dict[int, int] = {}  # by place, the step
        self.steps: list[Read] = []
        self.largest = 0

    def add(self, node: fx.Node, step: Read, layout: str) -> None:
        """Add the step that computes a node's value for all models."""
        self.steps.append(step)
        self._places[node], self._layouts[node] = len(self.steps), layout
        self.largest = max(self.largest, self.shape(node).numel())

    def output(self, node: fx.Node) -> Read:
        """Return how to read the module's output, as rows."""
        if not isinstance(node.args[0], fx.Node):
            raise Unstackable(f"the output of {type(self.problem.module).__name__}.forward, which is not one tensor")
        return self.read(node.args[0], "rows")

    def shape(self, node: fx.Node) -> torch.Size:
        """Return the shape of one sample's value of one model. Raises Unstackable if the value has no batch axis."""
        small, large = (result.shape for result in self._results[node])
        if len(small) == 0 or (small[0], large[0]) != BATCHES or small[1:] != large[1:]:
            raise Unstackable(f"{self.name(node)}, whose result is not one of each sample's")
        return small[1:]

    def constant(self, argument: Any) -> Any:
        """Return the value of an argument that is no tensor. Raises Unstackable if it depends on the batch size."""
        if isinstance(argument, fx.Node):
            small, large = self._results[argument]
            if isinstance(small, Tensor) or small != large:
                raise Unstackable(f"{self.name(argument)} as an option of a layer")
            return small
        if isinstance(argument, (tuple, list)):
            return type(argument)(self.constant(item) for item in argument)
        if isinstance(argument, slice):
            return slice(*(self.constant(item) for item in (argument.start, argument.stop, argument.step)))
        return argument

    def is_tensor(self, argument: Any) -> bool:
        return isinstance(argument, fx.Node) and isinstance(self._results[argument][0], Tensor)

    def is_weight(self, node: fx.Node) -> bool:
        """Tell whether the value is a parameter, buffer or constant of the module, which has no batch axis."""
        return node.op == "get_attr"

    def layout(self, node: fx.Node) -> str:
        return self._layouts[self._current(node)]

    def replace(self, node: fx.Node, by: fx.Node) -> None:
        """Note that `by` changes the value of `node` in place: later readers see the new value."""
        self._replaced[self._current(node)] = by

    def is_read_once(self, node: fx.Node) -> bool:
        return len(node.users) == 1 and node not in self._replaced and node not in self._replaced.values()

    def _current(self, node: fx.Node) -> fx.Node:
        while node in self._replaced:
            node = self._replaced[node]
        return node

    def read(self, node: fx.Node, layout: str) -> Read:
        """Return how to read a value in a layout."""
        node = self._current(node)
        if node not in self._places:
            raise Unstackable(f"{self.name(node)}, where a layer's result is expected")
        place, has = self._places[node], self._layouts[node]
        self._last_read[place] = len(self.steps)
        if has == layout:
            return lambda call: call.values[place]
        if layout == "images" and len(self.shape(node)) < 2:
            raise Unstackable(f"{self.name(node)}, whose result is no image")
        convert = _CONVERSIONS[has, layout]
        return lambda call: convert(call.values[place], call.n)

    def weight(self, tensor: Tensor) -> Read:
        """Return how to read all models' values [n, *shape] of a parameter or buffer, or n times a constant."""
        if id(tensor) in self._parameters:
            index = self._parameters[id(tensor)]
            return lambda call: call.parameters[index]
        if id(tensor) in self._buffers:
            index = self._buffers[id(tensor)]
            return lambda call: call.buffers[index]
        fixed = tensor.detach()

        def constant(call: StackedCall) -> Tensor:
            numbers = call.parameters[0]  # inputs may be tokens
            own = fixed.to(numbers) if fixed.is_floating_point() else fixed.to(numbers.device)
            return own.expand(call.n, *fixed.shape)

        return constant

    def broadcast_weight(self, source: fx.Node, node: fx.Node) -> Read:
        """Return how to read a parameter or constant as [n, 1, ...], which is broadcast over the samples of `node`."""
        tensor = operator.attrgetter(str(source.target))(self.problem.module)
        weight, missing = self.weight(tensor), len(self.shape(node)) - tensor.dim()
        if missing < 0:
            raise Unstackable(self.name(node))
        return lambda call: weight(call).reshape(call.n, 1, *[1] * missing, *tensor.shape)

    def name(self, node: fx.Node) -> str:
        """Return the name of a layer for an error message."""
        if node.op == "call_module":
            return f"{node.target} ({type(self.modules[str(node.target)]).__name__})"
        if node.op == "get_attr":
            return f"{node.target} (a parameter or constant)"
        kind = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        return f"{node.name} ({kind})"

    def unread_after(self) -> list[list[int]]:
        """Return for every step the places of the values that no later step reads, and that can be freed."""
        unread: list[list[int]] = [[] for _ in self.steps]
        for place, step in self._last_read.items():
            if step < len(self.steps):  # otherwise it is the output
                unread[step].append(place)
        return unread


class _Tracer(fx.Tracer):
    """Trace what is read of buffers, as of parameters: their values change."""

    proxy_buffer_attributes = True


class _Examples(fx.Interpreter):
    """Run a graph on a batch, and keep of every result its shape, as a tensor without content, or the plain value."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        super().__init__(module, graph=graph)
        self.extra_traceback = False  # the error message is the layer's own
        self.results: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        try:
            result = super().run_node(n)
        except Exception as error:  # of the user's layers: whatever they raise
            raise Unstackable(f"{n.name} ({n.target}), which fails on zeros ({one_line(error)})") from error
        self.results[n] = torch.empty(result.shape, device="meta") if isinstance(result, Tensor) else result
        return result


@torch.no_grad()
def _example_results(
    graph: fx.Graph, module: nn.Module, training: bool, problem: Problem
) -> dict[fx.Node, tuple[Any, Any]]:
    """Return the results of every node for both batch sizes: tensors without content, and plain values.

    Computed for real: torch's own arithmetic on tensors without content imports its compiler, which takes a second."""
    module = copy.deepcopy(module).train(training)
    kind = problem.data.batch(0, 0)[0].dtype  # tokens are integers
    runs: list[dict[fx.Node, Any]] = []
    with torch.random.fork_rng(devices=[]):
        for batch in BATCHES:
            examples = _Examples(module, graph)
            examples.run(torch.zeros((batch, *problem.data.input_shape), dtype=kind))
            runs.append(examples.results)
    small, large = runs
    return {node: (small[node], large[node]) for node in graph.nodes if node.op != "output"}


def _is_plain(node: fx.Node) -> bool:
    """Tell whether a node only computes with sizes and options, so that leaving it out changes nothing else."""
    if node.op == "call_method":
        return node.target in ("size", "dim", "ndimension", "numel", "nelement")
    return getattr(node.target, "__module__", "") in ("_operator", "builtins", "math")


def one_line(error: BaseException) -> str:
    """Return the message of an error in at most 120 characters."""
    return " ".join(str(error).split())[:120] or type(error).__name__


_CONVERSIONS: dict[tuple[str, str], Callable[[Tensor, int], Tensor]] = {
    ("rows", "images"): lambda x, n: x.transpose(0, 1).flatten(1, 2),
    ("images", "rows"): lambda x, n: x.unflatten(1, (n, -1)).transpose(0, 1),
    ("rows", "columns"): lambda x, n: x.movedim(1, -1),
    ("columns", "rows"): lambda x, n: x.movedim(-1, 1),
    ("images", "columns"): lambda x, n: x.unflatten(1, (n, -1)).movedim(0, -1).contiguous(),
    ("columns", "images"): lambda x, n: x.movedim(-1, 0).flatten(1, 2),
    ("shared", "columns"): lambda x, n: x.movedim(0, -1).unsqueeze(0).expand(n, *x.shape[1:], len(x)),
    ("shared", "rows"): lambda x, n: x.unsqueeze(0).expand(n, *x.shape),
    ("shared", "images"): lambda x, n: x.repeat(1, n, *[1] * (x.dim() - 2)),
}
