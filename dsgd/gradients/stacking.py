"""From a module to a network that computes N models of its kind at once.

The module's forward pass is traced, once for training and once for evaluation, and every layer in it is replaced by
one that serves all models together (`dsgd.gradients.layers`). Images of all models lie in one tensor [b, N C, H, W], so
that a convolution with N groups, one batch norm and one pooling act on all of them; everything else in [N, b, ...], or
in [N, ..., b] where products are taken (`dsgd.gradients.unfolded`).

A layer without such a counterpart, and whatever cannot be traced, raises `Unstackable`, which names it.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from dsgd.problem.problem import Problem

BATCHES = (3, 5)  # the shapes of two batches tell the batch axis from all others


class Unstackable(ValueError):
    """A module that cannot be stacked; the text names the layer."""


@dataclass
class Call:
    """One evaluation of all models. n: how many. samples: in a batch. parameters, buffers: [n, *shape] of every slot of
    the problem; buffers are contiguous and change in place in training. values: of every traced step so far."""

    n: int
    samples: int
    inputs: Tensor
    parameters: Sequence[Tensor]
    buffers: Sequence[Tensor]
    values: list[Any] = field(default_factory=list)


Read = Callable[[Call], Tensor]


class Network:
    """N models in training or in evaluation.

    In training, inputs are [n, b, *input_shape], in evaluation [b, *input_shape], the same for all models. Outputs are
    [n, b, ...]. largest: numbers in the largest activation of one model, per sample.
    """

    def __init__(self, problem: Problem, training: bool) -> None:
        """Raises Unstackable."""
        trace = Trace(problem, training)
        self._steps = trace.steps
        self._answer = trace.answer
        self._training = training
        self.largest = trace.largest
        self._over: list[list[int]] = [[] for _ in self._steps]  # values that nobody reads after a step
        for step, reads in enumerate(trace.last_reads(len(self._steps))):
            self._over[step] = reads

    def __call__(self, parameters: Sequence[Tensor], buffers: Sequence[Tensor], n: int, inputs: Tensor) -> Tensor:
        call = Call(n, inputs.shape[1 if self._training else 0], inputs, parameters, buffers)
        values = call.values
        values.append(inputs)
        for step, over in zip(self._steps, self._over, strict=True):
            values.append(step(call))
            for index in over:
                values[index] = None
        return self._answer(call)


class Trace:
    """The forward pass of one module, layer by layer as it is translated.

    What a layer's translation needs of its surroundings: shapes, and how to read a value in the layout it wants.
    Layouts: `images` [b, N C, H, W]; `rows` [N, b, ...]; `columns` [N, ..., b]; `shared` [b, ...], the same for all
    models.
    """

    def __init__(self, problem: Problem, training: bool) -> None:
        from dsgd.gradients.layers import translate

        self.training = training
        self.problem = problem
        module = problem.module
        was_training = module.training
        module.train(training)
        try:
            self.graph = fx.Tracer().trace(module)
        except Exception as error:  # fx raises whatever a proxy cannot do in the user's own code
            raise Unstackable(f"{type(module).__name__}.forward, which cannot be traced ({_line(error)})") from error
        finally:
            module.train(was_training)
        self.modules: dict[str, nn.Module] = dict(module.named_modules(remove_duplicate=False))
        self._parameters = {id(slot.owner._parameters[slot.name]): i for i, slot in enumerate(problem.parameters)}
        self._buffers = {id(slot.owner._buffers[slot.name]): i for i, slot in enumerate(problem.buffers)}
        self._found = _shapes(self.graph, module, training, problem)
        self._layouts: dict[fx.Node, str] = {}
        self._places: dict[fx.Node, int] = {}
        self._renamed: dict[fx.Node, fx.Node] = {}  # what was changed in place, and the node that did it
        self._last: dict[int, int] = {}
        self.steps: list[Read] = []
        self.largest = 0
        for node in self.graph.nodes:
            if node.op == "placeholder":
                if self._places:
                    if not node.args:
                        raise Unstackable(f"the second argument {node.target} of {type(module).__name__}.forward")
                    continue
                self._places[node], self._layouts[node] = 0, "rows" if training else "shared"
            elif node.op == "output":
                if not isinstance(node.args[0], fx.Node):
                    raise Unstackable(f"the output of {type(module).__name__}.forward, which is not one tensor")
                self.answer = self.read(node.args[0], "rows")
            elif isinstance(self._found[node][0], Tensor) and node.op != "get_attr":
                step, layout = translate(self, node)
                self.steps.append(step)
                self._places[node], self._layouts[node] = len(self.steps), layout
                self.largest = max(self.largest, self.shape(node).numel())

    def shape(self, node: fx.Node) -> torch.Size:
        """Of a value of one model, without the batch axis. Raises Unstackable for one that has none."""
        small, large = (found.shape for found in self._found[node])
        if len(small) == 0 or (small[0], large[0]) != BATCHES or small[1:] != large[1:]:
            raise Unstackable(f"{self.name(node)}, whose result is not one of each sample's")
        return small[1:]

    def constant(self, argument: Any) -> Any:
        """An argument that is no tensor; what was computed from sizes must not depend on the batch."""
        if isinstance(argument, fx.Node):
            small, large = self._found[argument]
            if isinstance(small, Tensor) or small != large:
                raise Unstackable(f"{self.name(argument)} as an option of a layer")
            return small
        if isinstance(argument, (tuple, list)):
            return type(argument)(self.constant(item) for item in argument)
        if isinstance(argument, slice):
            return slice(*(self.constant(item) for item in (argument.start, argument.stop, argument.step)))
        return argument

    def is_tensor(self, argument: Any) -> bool:
        return isinstance(argument, fx.Node) and isinstance(self._found[argument][0], Tensor)

    def is_weight(self, node: fx.Node) -> bool:
        """A parameter, buffer or constant of the module, which has no batch axis."""
        return node.op == "get_attr"

    def layout(self, node: fx.Node) -> str:
        return self._layouts[self._now(node)]

    def changes(self, node: fx.Node, into: fx.Node) -> None:
        """`into` changes the value of `node` in place: who reads it later sees that."""
        self._renamed[self._now(node)] = into

    def is_read_once(self, node: fx.Node) -> bool:
        return len(node.users) == 1 and node not in self._renamed and node not in self._renamed.values()

    def _now(self, node: fx.Node) -> fx.Node:
        while node in self._renamed:
            node = self._renamed[node]
        return node

    def read(self, node: fx.Node, layout: str) -> Read:
        """How to get a value in a layout."""
        node = self._now(node)
        if node not in self._places:
            raise Unstackable(f"{self.name(node)}, where a layer's result is expected")
        place, has = self._places[node], self._layouts[node]
        self._last[place] = len(self.steps)
        if has == layout:
            return lambda call: call.values[place]
        if layout == "images" and len(self.shape(node)) < 2:
            raise Unstackable(f"{self.name(node)}, whose result is no image")
        turn = _TURNS[has, layout]
        return lambda call: turn(call.values[place], call.n)

    def weight(self, tensor: Tensor) -> Read:
        """All models' values [n, *shape] of a parameter or buffer; constants are the same for all."""
        if id(tensor) in self._parameters:
            index = self._parameters[id(tensor)]
            return lambda call: call.parameters[index]
        if id(tensor) in self._buffers:
            index = self._buffers[id(tensor)]
            return lambda call: call.buffers[index]
        fixed = tensor.detach()
        return lambda call: _as(fixed, call.inputs).expand(call.n, *fixed.shape)

    def attribute(self, node: fx.Node) -> Tensor:
        return operator.attrgetter(str(node.target))(self.problem.module)

    def name(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return f"{node.target} ({type(self.modules[str(node.target)]).__name__})"
        if node.op == "get_attr":
            return f"{node.target} (a parameter or constant)"
        kind = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        return f"{node.name} ({kind})"

    def last_reads(self, steps: int) -> list[list[int]]:
        """The values that nobody reads after each step; the answer's outlive the last one."""
        over: list[list[int]] = [[] for _ in range(steps)]
        for place, step in self._last.items():
            if step < steps:
                over[step].append(place)
        return over


def _shapes(graph: fx.Graph, module: nn.Module, training: bool, problem: Problem) -> dict[fx.Node, tuple[Any, Any]]:
    """What every node yields for two sizes of batch: tensors without content, and plain values."""
    empty = copy.deepcopy(module).to("meta").train(training)
    both: list[dict[fx.Node, Any]] = []
    for batch in BATCHES:
        found: dict[fx.Node, Any] = {}

        def known(argument: fx.Node, found: dict[fx.Node, Any] = found) -> Any:
            return found[argument]

        for node in graph.nodes:
            try:
                if node.op == "placeholder":
                    first = not found
                    shape = (batch, *problem.data.input_shape)
                    found[node] = (
                        torch.empty(shape, dtype=problem.dtype, device="meta") if first else (*node.args, 0)[0]
                    )
                    continue
                args, kwargs = fx.map_arg(node.args, known), fx.map_arg(node.kwargs, known)
                if node.op == "get_attr":
                    value = operator.attrgetter(str(node.target))(empty)
                    found[node] = value.to("meta") if isinstance(value, Tensor) else value
                elif node.op == "call_function":
                    found[node] = node.target(*args, **kwargs)
                elif node.op == "call_method":
                    found[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
                elif node.op == "call_module":
                    found[node] = empty.get_submodule(str(node.target))(*args, **kwargs)
            except Exception as error:  # of the user's layers: whatever they raise
                raise Unstackable(f"{node.name} ({node.target}), which fails without data ({_line(error)})") from error
        both.append(found)
    return {node: (both[0][node], both[1][node]) for node in both[0]}


def _as(constant: Tensor, inputs: Tensor) -> Tensor:
    return constant.to(inputs) if constant.is_floating_point() else constant.to(inputs.device)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


_TURNS: dict[tuple[str, str], Callable[[Tensor, int], Tensor]] = {
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
