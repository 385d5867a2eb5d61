"""Translation of activation functions, of arithmetic, and of slices, padding and concatenation for compiled
kernels: rules as in `program.py`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from dsgd.gradients.layer_steps import position_step
from dsgd.gradients.tracing import Untranslatable, source
from dsgd.gradients.translation import FUNCTIONS, Activation, Translation, gathered, inverse

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848, 1.0507009873554804934
_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv)
_NAMED: dict[type[nn.Module], str] = {
    nn.SiLU: "silu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.ReLU6: "relu6",
    nn.Hardsigmoid: "hardsigmoid",
    nn.Hardswish: "hardswish",
    nn.Mish: "mish",
}
ACTIVATIONS = (nn.GELU, nn.ELU, nn.SELU, nn.LeakyReLU, nn.Softplus, *_NAMED)


def activate(translation: Translation, node: fx.Node, module: nn.Module) -> Activation:
    value, name = translation.source(node), _NAMED.get(type(module))
    match module:
        case nn.GELU():
            return _applied(translation, node, value, "gelu_tanh" if module.approximate == "tanh" else "gelu")
        case nn.ELU():
            return _applied(translation, node, value, "elu", module.alpha)
        case nn.LeakyReLU():
            return _applied(translation, node, value, "leaky_relu", module.negative_slope)
        case nn.SELU():
            return _applied(
                translation, node, _applied(translation, node, value, "elu", _SELU_ALPHA), "scale", _SELU_SCALE
            )
        case nn.Softplus() if (module.beta, module.threshold) == (1, 20):
            return _applied(translation, node, value, "softplus")
    if name is None:
        raise Untranslatable(translation.trace.name(node))
    return _applied(translation, node, value, name)


def negated(translation: Translation, node: fx.Node) -> Activation:
    return _applied(translation, node, translation.read(node, source(node)), "scale", -1.0)


def _applied(
    translation: Translation, node: fx.Node, value: Activation, function: str, slope: float = 0.0
) -> Activation:
    """Apply a function to each number of a value."""
    numbers, index = torch.Size((value.shape.numel(),)), FUNCTIONS.index(function)
    return translation.step_to(
        translation.new_like(value), "activate", node, value, numbers, function=index, slope=slope
    )


def arithmetic(operation: str, translation: Translation, node: fx.Node) -> Activation:
    """Translate an operator, + - * or /, whose operands are values, parameters, buffers or numbers."""
    in_place = node.target in _IN_PLACE or str(node.target).endswith("_")
    if len(node.args) != 2 or node.kwargs or (in_place and len(source(node).users) > 1):  # others read the result
        raise Untranslatable(translation.trace.name(node))
    left, right = node.args
    if operation == "+" and (table := position_step(translation, node)):
        return table
    if not translation.trace.is_tensor(right):
        number = translation.trace.constant(right)
        return _with_number(translation, node, translation.read(node, left), operation, number)
    if not translation.trace.is_tensor(left):
        number = translation.trace.constant(left)
        return _number_with(translation, node, number, operation, translation.read(node, right))
    return _combined(translation, node, operation)


def _with_number(
    translation: Translation, node: fx.Node, value: Activation, operation: str, number: float
) -> Activation:
    match operation:
        case "+" | "-":
            return _applied(translation, node, value, "shift", number if operation == "+" else -number)
        case "*":
            return _applied(translation, node, value, "scale", number)
    translation.refuse_if(number == 0, node)
    return _applied(translation, node, value, "scale", 1 / number)


def _number_with(
    translation: Translation, node: fx.Node, number: float, operation: str, value: Activation
) -> Activation:
    match operation:
        case "-":
            value, operation = _applied(translation, node, value, "scale", -1.0), "+"
        case "/":
            value, operation = _applied(translation, node, value, "reciprocal"), "*"
    return _with_number(translation, node, value, operation, number)


def _combined(translation: Translation, node: fx.Node, operation: str) -> Activation:
    """Combine two values by an operation. One may have fewer numbers, which are broadcast."""
    token_axis = next(
        (translation.values[item].token_axis for item in node.all_input_nodes if item in translation.values), None
    )
    if token_axis is None:
        raise Untranslatable(translation.trace.name(node))
    shape = translation.shape(node, token_axis)
    left, right = (_operand(translation, node, argument, token_axis) for argument in node.args)
    sign = 1.0
    if operation == "/":
        right = _applied(translation, node, right, "reciprocal")
    elif operation == "-" and left.shape == shape:
        sign = -1.0
    elif operation == "-":
        right = _applied(translation, node, right, "scale", -1.0)
    if left.shape != shape:
        left, right = right, left
    translation.refuse_if(left.shape != shape or left.token_axis != right.token_axis, node)
    count = right.shape.numel()
    window = None
    if right.shape != shape:
        window = torch.arange(count).view(right.shape).expand(shape).flatten()
    if operation == "+" and window is None:
        for argument, value, other in zip(node.args, (left, right), (right, left), strict=True):
            if other.offset != value.offset and (step := translation.norm_behind(argument, value)):
                return translation.add_to_norm(node, step, other)
    kind = "add" if operation in ("+", "-") else "multiply"
    numbers = torch.Size((shape.numel(),))
    return translation.step(kind, node, left, numbers, other=right.offset, window=window, rows=count, slope=sign)


def _operand(translation: Translation, node: fx.Node, argument: Any, token_axis: int) -> Activation:
    """Return a value, with as many axes as the result, that is a parameter or buffer repeated for every sample."""
    axes = len(translation.trace.shape(node)) + 1
    if argument.op != "get_attr":
        value = translation.read(node, argument)
        translation.refuse_if(len(value.shape) + 1 + bool(translation.tokens) != axes, node)
        return value
    tensor = translation.tensor(argument)
    whole = [1] * (axes - tensor.dim()) + list(tensor.shape)
    one_for_all = [whole.pop(0)] + ([whole.pop(token_axis)] if translation.tokens else [])
    translation.refuse_if(len(whole) + len(one_for_all) != axes or set(one_for_all) != {1}, node)
    trained = isinstance(tensor, nn.Parameter)
    slot = {"weight": translation.parameter(tensor)} if trained else {"mean": translation.buffer(tensor)}
    to = translation.new(torch.Size(whole))._replace(token_axis=token_axis)
    return translation.step_to(to, "fixed", node, translation.input, torch.Size((tensor.numel(),)), **slot)


def gathered_by(function: Callable[..., Tensor], translation: Translation, node: fx.Node) -> Activation:
    """Translate a function that leaves numbers out, moves them, or adds zeros."""
    value = translation.source(node)
    shape, numbers = ((translation.tokens,) if translation.tokens else ()) + value.shape, value.shape.numel()
    places = torch.arange(1.0, 1 + math.prod(shape), dtype=torch.float64).view(1, *shape)
    named = {name: translation.trace.constant(option) for name, option in node.kwargs.items()}
    try:
        moved = function(places, *(translation.trace.constant(option) for option in node.args[1:]), **named)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:  # the function also reads along the batch axis
        raise Untranslatable(translation.trace.name(node)) from error
    translation.refuse_if(moved.shape != (1, *translation.trace.shape(node)), node)
    rows = moved.long().view(-1, translation.shape(node).numel()) - 1
    first, begins = rows[0], torch.arange(0, len(rows) * numbers, numbers).unsqueeze(1)
    if not torch.equal(rows, torch.where(first < 0, first, first + begins)):  # tokens take from others
        raise Untranslatable(translation.trace.name(node))
    return gathered(translation, node, first)


def concatenated(translation: Translation, node: fx.Node) -> Activation:
    """Sum the values, each with zeros where the others are."""
    read: Any = node.args[0] if node.args else ()
    values = [translation.read(node, item) for item in read]
    translation.refuse_if(len({value.token_axis for value in values}) != 1, node)
    token_axis, given = values[0].token_axis, node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    axis = translation.trace.constant(given) % (len(translation.trace.shape(node)) + 1) - 1
    translation.refuse_if(axis < 0 or (translation.tokens and axis == token_axis), node)
    axis -= bool(translation.tokens) and axis > token_axis
    like = Activation(0, translation.shape(node, token_axis), token_axis)
    outside = [torch.full(value.shape, -1) for value in values]
    parts = list[Activation]()
    for index, value in enumerate(values):
        inside = torch.arange(value.shape.numel()).view(value.shape)
        window = torch.cat([*outside[:index], inside, *outside[index + 1 :]], axis).flatten()
        back = inverse(window.unsqueeze(0), value.shape.numel())
        parts.append(translation.step_to(translation.new_like(like), "gather", node, value, window=window, back=back))
    return reduce(partial(_total, translation, node), parts)


def _total(translation: Translation, node: fx.Node, left: Activation, right: Activation) -> Activation:
    return translation.step_to(translation.new_like(left), "add", node, left, other=right.offset, slope=1.0)


def slice_of(places: Tensor, index: Any) -> Tensor:
    return places[index]


def zeros_around(places: Tensor, widths: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    if mode != "constant" or value:
        raise ValueError("other numbers than zeros")
    return F.pad(places, widths)
