"""A program for compiled kernels under construction: steps of a network's layers, and offsets of their values.

The fields of a step are explained in `csrc/program.h`.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from dsgd.data.in_memory import TextWindows
from dsgd.gradients.amx_routes import ImageAxis
from dsgd.gradients.tracing import ModuleTrace, Untranslatable, source
from dsgd.problem.problem import Problem

KINDS = ("convolve", "norm", "group_norm", "add", "multiply", "gather", "average_pool", "max_pool", "activate")
KINDS += ("linear", "dropout", "fixed", "embed", "offset", "attend")
SINGLE_KINDS = KINDS[12:]  # kinds that are not computed in bf16
NORMS = KINDS[1:3]
RECTIFYING = KINDS[:10]  # kinds whose step can also compute a ReLU behind it
FUNCTIONS = ("gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "elu", "relu6", "hardsigmoid", "hardswish", "mish")
FUNCTIONS += ("softplus", "scale", "shift", "reciprocal", "leaky_relu")


class Activation(NamedTuple):
    """A value of the network. offset: position in the arena, in numbers for one sample. shape: shape for one sample.

    In a network for sequences, both are for one token. token_axis: index of the token axis among a sample's axes."""

    offset: int
    shape: torch.Size
    token_axis: int = 0


class TokenTable(NamedTuple):
    """A parameter with a row for each token of a sample, such as positions. weight: its offset in the vector. row:
    [tokens], row of each token. rows: number of rows."""

    weight: int
    row: Tensor
    rows: int


@dataclass
class ProgramStep:
    """One layer. from_, other, third, to, kept: offsets in the arena, in numbers for one sample. axes: rows and columns
    of a convolution. The other fields are as in `csrc/program.h`."""

    kind: str
    from_: int
    to: int
    inputs: int
    outputs: int
    from_pixels: int
    to_pixels: int
    rectify: bool = False
    other: int = 0
    third: int = 0
    sums: bool = False
    has_gradient: bool = True
    adds: bool = False
    other_adds: bool = False
    third_adds: bool = False
    taps: int = 1
    weight: int = -1
    bias: int = -1
    mean: int = -1
    variance: int = -1
    groups: int = 1
    function: int = 0
    tiles: bool = False
    rows: int = 0
    columns: int = 0
    padding: int = 0
    kept: int = 0
    mask: int = 0
    causal: bool = False
    window: Tensor | None = None
    back: Tensor | None = None
    axes: tuple[ImageAxis, ...] = ()
    divisor: Tensor | None = None
    momentum: float = 0.0
    eps: float = 0.0
    slope: float = 0.0


@dataclass
class NetworkProgram:
    """The steps of a network. numbers: size of all activations, for one sample; largest: size of the largest
    activation. output: offset of the logits, `classes` numbers. tokens: length of a sequence, None for other samples;
    the other fields are then for one token. vocabulary: maximum of different tokens. drops: (numbers for one sample,
    share of them that is kept) of each dropout layer in order."""

    steps: list[ProgramStep] = field(default_factory=list)
    numbers: int = 0
    largest: int = 0
    output: int = 0
    classes: int = 0
    tokens: int | None = None
    vocabulary: int | None = None
    drops: list[tuple[int, float]] = field(default_factory=list)


class Translation:
    """A program under construction: a rule for a node reads values, adds steps, and sets its value's offset."""

    def __init__(self, problem: Problem) -> None:
        self.trace = trace = ModuleTrace(problem, training=True)
        problem = trace.problem
        shape = torch.Size(problem.data.input_shape)
        self.tokens = shape[0] if isinstance(problem.data, TextWindows) else None
        self.program = NetworkProgram(tokens=self.tokens)
        self._parameters = {id(slot.owner._parameters[slot.name]): slot.start for slot in problem.parameters}
        self._buffers = {id(slot.owner._buffers[slot.name]): slot.start for slot in problem.buffers}
        self._unused = set(self._parameters)
        first = next(node for node in trace.graph.nodes if node.op == "placeholder")
        self.input = self.new(torch.Size((1,)) if self.tokens else shape)
        self.values: dict[fx.Node, Activation] = {first: self.input}
        self.tables: dict[fx.Node, TokenTable] = {}
        self.made_by: dict[fx.Node, ProgramStep] = {}

    def refuse_if(self, condition: object, node: fx.Node) -> None:
        """Raise Untranslatable, with the name of the layer, if a condition holds."""
        if condition:
            raise Untranslatable(self.trace.name(node))

    def read(self, node: fx.Node, argument: Any) -> Activation:
        """Return a value that `node` reads. Raises Untranslatable unless it is an activation."""
        self.refuse_if(not isinstance(argument, fx.Node) or argument not in self.values, node)
        return self.values[argument]

    def source(self, node: fx.Node, axes: int | None = None) -> Activation:
        """Return the value that a layer reads, whose tokens, if any, are behind the batch. Raises Untranslatable for
        other values, and if a sample's has another number of axes."""
        value = self.read(node, source(node))
        self.refuse_if(value.token_axis or (axes is not None and len(value.shape) != axes), node)
        return value

    def shape(self, node: fx.Node, token_axis: int = 0) -> torch.Size:
        """Return the shape of a node's value for one sample, of sequences for one token. Raises Untranslatable if its
        tokens are on another axis."""
        shape = self.trace.shape(node)
        if self.tokens is None:
            return shape
        self.refuse_if(shape[token_axis : token_axis + 1] != (self.tokens,), node)
        return shape[:token_axis] + shape[token_axis + 1 :]

    def new(self, shape: torch.Size) -> Activation:
        """Reserve a place in the arena."""
        offset, numbers = self.program.numbers, shape.numel()
        self.program.numbers += numbers
        self.program.largest = max(self.program.largest, numbers)
        return Activation(offset, shape)

    def new_like(self, value: Activation) -> Activation:
        """Reserve a place for a value of the same shape."""
        return self.new(value.shape)._replace(token_axis=value.token_axis)

    def parameter(self, tensor: Tensor | None) -> int:
        """Return the offset of a parameter in the vector, -1 for None. Raises Untranslatable if it is not trained."""
        if tensor is None:
            return -1
        if id(tensor) not in self._parameters:
            raise Untranslatable("a parameter that is not trained")
        self._unused.discard(id(tensor))
        return self._parameters[id(tensor)]

    def affine(self, module: Any) -> dict[str, Any]:
        """Return the places of a layer's weight and bias."""
        return {"weight": self.parameter(module.weight), "bias": self.parameter(module.bias)}

    def buffer(self, tensor: Tensor | None) -> int:
        """Return the offset of a buffer in the vector, -1 for None. Raises Untranslatable if it is not there."""
        if tensor is not None and id(tensor) not in self._buffers:
            raise Untranslatable("a constant that is neither a parameter nor a buffer of floats")
        return -1 if tensor is None else self._buffers[id(tensor)]

    def tensor(self, node: fx.Node) -> Tensor:
        """Return the parameter or buffer that a node reads."""
        return operator.attrgetter(str(node.target))(self.trace.problem.module)

    def step(
        self, kind: str, node: fx.Node, value: Activation, as_shape: torch.Size | None = None, **options: Any
    ) -> Activation:
        """Add a step from a value to the node's value, whose first axis is the channel axis. as_shape: shape of both in
        the step, if it differs."""
        to = self.new(self.shape(node, value.token_axis))._replace(token_axis=value.token_axis)
        return self.step_to(to, kind, node, value, as_shape, **options)

    def step_to(
        self,
        to: Activation,
        kind: str,
        node: fx.Node,
        value: Activation,
        as_shape: torch.Size | None = None,
        **options: Any,
    ) -> Activation:
        """Add a step as `step`, to a value that was reserved before."""
        shape = as_shape or to.shape
        value = Activation(value.offset, as_shape or value.shape)
        channels = (value.shape[0], shape[0])
        pixels = (value.shape[1:].numel(), shape[1:].numel())
        self.made_by[node] = ProgramStep(kind, value.offset, to.offset, *channels, *pixels, **options)
        self.program.steps.append(self.made_by[node])
        return to

    def norm_behind(self, argument: Any, value: Activation) -> ProgramStep | None:
        """Return the norm that makes a value without other readers, if it can include a sum behind it."""
        step = self.made_by.get(argument)
        if step is None or step.kind not in NORMS or step.sums or step.rectify or len(argument.users) > 1:
            return None
        return step if step.to == value.offset and not value.token_axis else None

    def add_to_norm(self, node: fx.Node, step: ProgramStep, other: Activation) -> Activation:
        """Let a norm's step, which moves behind all others, also add another value. The result is the node's value."""
        self.program.steps = [*(earlier for earlier in self.program.steps if earlier is not step), step]
        step.sums, step.other = True, other.offset
        self.made_by[node] = step
        return Activation(step.to, other.shape)

    def finished(self, node: fx.Node) -> NetworkProgram:
        """Return the program, whose output `node` reads. Raises Untranslatable."""
        value = self.read(node, node.args[0])
        if len(value.shape) != 1 or (self.tokens and value.token_axis != 1):
            raise Untranslatable("an output that is not one vector of logits for each sample or token")
        self.program.output, self.program.classes = value.offset, value.shape[0]
        if self._unused:
            raise Untranslatable("parameters that no layer of its own has")
        # activations to which a step adds gradients: backwards, the first step that has a gradient for one sets it
        given = {self.program.output}
        for step in reversed(self.program.steps):
            if step.to not in given:
                raise Untranslatable("a layer whose result nothing reads")
            step.has_gradient = step.from_ != self.input.offset or step.kind in ("add", "multiply")
            if step.sums:  # its kernel adds to the other one first
                step.other_adds = step.other in given
                given.add(step.other)
            step.adds = step.from_ in given
            if step.has_gradient:
                given.add(step.from_)
            if step.kind in ("add", "multiply", "attend"):
                step.other_adds = step.other in given
                given.add(step.other)
            if step.kind == "attend":
                step.third_adds = step.third in given
                given.add(step.third)
        return self.program


def inverse(window: Tensor, pixels: int) -> Tensor:
    """Return, for every pixel and tap, the position that reads the pixel by that tap, or -1."""
    back = torch.full((len(window), pixels), -1)
    taps, places = (window >= 0).nonzero(as_tuple=True)
    back[taps, window[taps, places]] = places
    return back


def gathered(translation: Translation, node: fx.Node, window: Tensor, rectify: bool = False) -> Activation:
    """Add a step that gathers numbers of the value before it. window: indices into that value, -1 for zeros. Raises
    Untranslatable if a number is taken twice."""
    value = translation.read(node, source(node))
    taken = window[window >= 0]
    translation.refuse_if(len(taken.unique()) != len(taken), node)
    back = inverse(window.unsqueeze(0), value.shape.numel())
    return translation.step("gather", node, value, window=window, back=back, rectify=rectify)
