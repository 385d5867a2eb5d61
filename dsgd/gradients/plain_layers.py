"""Stacked counterparts of layers without parameters: activations, arithmetic, pooling, reshaping."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from dsgd.gradients.tracing import ModuleTrace, Read, StackedCall, Step, Unstackable, source

FunctionRule = Callable[[ModuleTrace, fx.Node], Step]
UNROLLED = 64  # numbers that one iteration of a vectorised loop takes, at most
_KEEPS_NO_OUTPUT = (nn.Conv2d, nn.BatchNorm2d, nn.GroupNorm)  # for the backward pass


# Activations


def _elementwise(trace: ModuleTrace, node: fx.Node, function: Callable[[Tensor], Tensor]) -> Step:
    layout = trace.layout(source(node))
    read = trace.read(source(node), layout)
    return lambda call: function(read(call)), layout


def _padded(trace: ModuleTrace, node: fx.Node, function: Callable[..., Tensor], *options: Any, **named: Any) -> Step:
    """Apply a function whose vectorised loop has other last bits in its remainder: zeros pad each thread's last vector,
    so that a model's place in the stack has no influence."""

    def padded(x: Tensor) -> Tensor:
        more = -x.numel() % (UNROLLED * torch.get_num_threads())
        if not more:
            return function(x, *options, **named)
        return function(F.pad(x.flatten(), (0, more)), *options, **named)[: x.numel()].view(x.shape)

    return _elementwise(trace, node, padded)


def activation(trace: ModuleTrace, node: fx.Node, module: nn.Module) -> Step:
    """Apply the module itself, never in place."""
    inplace = getattr(module, "inplace", False)
    if inplace:
        module = copy.copy(module)
        module.inplace = False  # pyright: ignore[reportArgumentType]
    step = _padded(trace, node, module)
    if inplace:
        trace.replace(source(node), node)
    return step


def relu(trace: ModuleTrace, node: fx.Node, module: nn.Module | None = None) -> Step:
    """Apply ReLU, in place where neither another layer nor a backward pass reads its argument."""
    inplace = module.inplace if isinstance(module, nn.ReLU) else _option(trace, node, 1, "inplace", False)
    argument = source(node)
    overwrite = trace.is_read_once(argument) and _overwritable(trace, argument)
    step = _elementwise(trace, node, torch.relu_ if overwrite else torch.relu)
    if inplace or str(node.target) == "relu_":
        trace.replace(argument, node)
    return step


def _overwritable(trace: ModuleTrace, node: fx.Node) -> bool:
    if node.op == "call_module":
        module = trace.modules[str(node.target)]
        if trace.layout(node) == "columns":  # where other layers return views of what they have computed
            return isinstance(module, nn.Linear)
        return isinstance(module, _KEEPS_NO_OUTPUT)
    return node.target in (operator.add, operator.iadd, torch.add, "add", "add_")


def dropout(trace: ModuleTrace, node: fx.Node, module: nn.Dropout) -> Step:
    if trace.training and module.p > 0:
        raise Unstackable(trace.name(node))
    return _elementwise(trace, node, nn.Identity())


def _option(trace: ModuleTrace, node: fx.Node, place: int, name: str, default: Any) -> Any:
    """Return an argument of a traced call by its place or name."""
    return trace.constant(node.args[place] if len(node.args) > place else node.kwargs.get(name, default))


def _options(trace: ModuleTrace, node: fx.Node) -> tuple[list[Any], dict[str, Any]]:
    """Return all arguments of a traced call after the first."""
    named = {name: trace.constant(option) for name, option in node.kwargs.items()}
    return [trace.constant(option) for option in node.args[1:]], named


def function_rule(function: Callable[..., Tensor]) -> FunctionRule:
    """Return the rule of an elementwise function."""

    def rule(trace: ModuleTrace, node: fx.Node) -> Step:
        options, named = _options(trace, node)
        inplace = named.pop("inplace", False)
        step = _padded(trace, node, function, *options, **named)
        if inplace:
            trace.replace(source(node), node)
        return step

    return rule


# Pooling


def image_layer(
    trace: ModuleTrace, node: fx.Node, function: Callable[..., Tensor], *options: Any, **named: Any
) -> Step:
    """Apply a layer that acts on every channel by itself."""
    if len(trace.shape(source(node))) != 3:
        raise Unstackable(trace.name(node))
    read = trace.read(source(node), "images")
    return lambda call: function(read(call), *options, **named), "images"


def pooling_rule(function: Callable[..., Tensor]) -> FunctionRule:
    """Return the rule of a pooling function."""

    def rule(trace: ModuleTrace, node: fx.Node) -> Step:
        options, named = _options(trace, node)
        return image_layer(trace, node, function, *options, **named)

    return rule


# Arithmetic


def binary_rule(function: Callable[[Any, Any], Tensor], inplace: bool = False) -> FunctionRule:
    """Return the rule of an operator whose operands are values, parameters or numbers."""

    def rule(trace: ModuleTrace, node: fx.Node) -> Step:
        if len(node.args) != 2 or node.kwargs:
            raise Unstackable(trace.name(node))
        results = [arg for arg in node.args if trace.is_tensor(arg) and not trace.is_weight(arg)]  # pyright: ignore
        if not results:
            raise Unstackable(trace.name(node))
        trace.shape(node)
        layouts = {trace.layout(result) for result in results}  # pyright: ignore[reportArgumentType]
        with_weight = len(results) < sum(trace.is_tensor(arg) for arg in node.args)
        layout = (
            "rows" if with_weight else next(one for one in ("columns", "images", "rows", "shared") if one in layouts)
        )
        left, right = (_operand(trace, node, arg, layout) for arg in node.args)
        if inplace:
            trace.replace(source(node), node)
        return lambda call: function(left(call), right(call)), layout

    return rule


def _operand(trace: ModuleTrace, node: fx.Node, operand: Any, layout: str) -> Callable[[StackedCall], Any]:
    if not trace.is_tensor(operand):
        constant = trace.constant(operand)
        return lambda call: constant
    if trace.is_weight(operand):
        return trace.broadcast_weight(operand, node)
    if len(trace.shape(operand)) != len(trace.shape(node)):
        raise Unstackable(trace.name(node))
    return trace.read(operand, layout)


# Reshaping and indexing


def reshape(trace: ModuleTrace, node: fx.Node, module: nn.Module | None = None) -> Step:
    """Flatten, view and their like: each sample keeps its numbers, in their order."""
    shape = trace.shape(node)
    trace.shape(source(node))
    layout = trace.layout(source(node))
    layout = "rows" if layout == "images" else layout
    read = trace.read(source(node), layout)
    if layout == "shared":
        return lambda call: read(call).reshape(call.samples, *shape), layout
    if layout == "columns":
        return lambda call: read(call).reshape(call.n, *shape, call.samples), layout
    return lambda call: read(call).reshape(call.n, call.samples, *shape), layout


def _separated(trace: ModuleTrace, node: fx.Node, function: Callable[[Tensor], Tensor]) -> Step:
    """Apply a function to a value in which axis a > 0 of one model is axis a + 1."""
    if trace.layout(source(node)) != "images":
        rows = trace.read(source(node), "rows")
        return lambda call: function(rows(call)), "rows"
    images = trace.read(source(node), "images")
    if len(trace.shape(node)) == 3:
        return lambda call: function(images(call).unflatten(1, (call.n, -1))).flatten(1, 2), "images"
    return lambda call: function(images(call).unflatten(1, (call.n, -1))).transpose(0, 1), "rows"


def mean(trace: ModuleTrace, node: fx.Node) -> Step:
    """Average over axes other than the batch."""
    axes = _option(trace, node, 1, "dim", None)
    keep = _option(trace, node, 2, "keepdim", False)
    count = len(trace.shape(source(node))) + 1
    averaged = sorted(axis % count for axis in ([axes] if isinstance(axes, int) else axes or range(count)))
    trace.shape(node)
    if 0 in averaged:
        raise Unstackable(trace.name(node))
    if trace.layout(source(node)) == "columns":
        columns = trace.read(source(node), "columns")
        return lambda call: columns(call).mean(averaged, keep), "columns"
    averaged = [axis + 1 for axis in averaged]
    return _separated(trace, node, lambda x: x.mean(averaged, keep))


def slices(trace: ModuleTrace, node: fx.Node) -> Step:
    """Slice axes other than the batch."""
    index = trace.constant(node.args[1])
    index = index if isinstance(index, tuple) else (index,)
    everything = slice(None)
    if not all(isinstance(part, slice) for part in index) or index[0] != everything:
        raise Unstackable(trace.name(node))
    trace.shape(node)
    return _separated(trace, node, lambda x: x[(everything, everything, *index[1:])])


def pad(trace: ModuleTrace, node: fx.Node) -> Step:
    """Pad axes other than the batch with a constant."""
    widths = _option(trace, node, 1, "pad", ())
    mode, value = _option(trace, node, 2, "mode", "constant"), _option(trace, node, 3, "value", None)
    if mode != "constant" or len(widths) > 2 * len(trace.shape(node)):
        raise Unstackable(trace.name(node))
    return _separated(trace, node, lambda x: F.pad(x, widths, value=value))


def expand(trace: ModuleTrace, node: fx.Node) -> Step:
    """Return a parameter as the value of every sample."""
    shape = trace.shape(node)
    if not trace.is_weight(source(node)):
        raise Unstackable(trace.name(node))
    weight: Read = trace.broadcast_weight(source(node), node)
    return lambda call: weight(call).expand(call.n, call.samples, *shape), "rows"
