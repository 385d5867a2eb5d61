"""Layers of N models at once: what each layer of a traced module becomes.

A rule gets the trace and a node of it, and returns how to compute the node's value for all models, and its layout.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from dsgd.gradients.stacking import Call, Read, Trace, Unstackable
from dsgd.gradients.unfolded import convolution, products

Step = tuple[Read, str]
FEW = 4  # pixels that a convolution leaves of an image: such a one is a product of columns
UNROLLED = 64  # numbers that a loop over vectors takes at once, at most


def translate(trace: Trace, node: fx.Node) -> Step:
    """The node for all models. Raises Unstackable for a layer without a rule."""
    if node.op == "call_module":
        module = trace.modules[str(node.target)]
        rule = _MODULES.get(type(module))
        hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
        if rule is None or hooks or node.kwargs or len(node.args) != 1:
            raise Unstackable(trace.name(node))
        return rule(trace, node, module)
    function = _METHODS.get(str(node.target)) if node.op == "call_method" else _FUNCTIONS.get(node.target)
    if function is None:
        raise Unstackable(trace.name(node))
    return function(trace, node)


def _source(node: fx.Node) -> fx.Node:
    return node.args[0]  # pyright: ignore[reportReturnType]


# Modules with parameters


def _weights(trace: Trace, module: nn.Module, *names: str) -> list[Read | None]:
    tensors = [getattr(module, name) for name in names]
    return [None if tensor is None else trace.weight(tensor) for tensor in tensors]


def _flat(read: Read | None, call: Call) -> Tensor | None:
    return None if read is None else read(call).flatten()


def _convolution(trace: Trace, node: fx.Node, module: nn.Conv2d) -> Step:
    if module.padding_mode != "zeros":
        raise Unstackable(trace.name(node))
    weight, bias = _weights(trace, module, "weight", "bias")
    assert weight is not None
    shared = trace.layout(_source(node)) == "shared" and module.groups == 1  # one plain convolution for all models
    stride, padding, dilation, groups = module.stride, module.padding, module.dilation, module.groups
    if groups == 1 and not shared and not isinstance(padding, str) and trace.shape(node)[1:].numel() <= FEW:
        columns = trace.read(_source(node), "columns")

        def as_products(call: Call) -> Tensor:
            own_bias = None if bias is None else bias(call)
            return convolution(weight(call), columns(call), own_bias, stride, padding, dilation)

        return as_products, "columns"
    read = trace.read(_source(node), "shared" if shared else "images")

    def step(call: Call) -> Tensor:
        kernels = weight(call).flatten(0, 1)
        count = 1 if shared else groups * call.n
        return F.conv2d(read(call), kernels, _flat(bias, call), stride, padding, dilation, count)

    return step, "images"


def _batch_norm(trace: Trace, node: fx.Node, module: nn.BatchNorm2d) -> Step:
    if module.momentum is None:  # would need to know how many batches each worker has seen
        raise Unstackable(f"{trace.name(node)} with momentum=None")
    alone = trace.shape(node)[1:].numel() == 1
    layout = "columns" if alone or trace.layout(_source(node)) == "columns" else "images"
    read = trace.read(_source(node), layout)
    names = ("running_mean", "running_var", "weight", "bias")
    mean, variance, weight, bias = _weights(trace, module, *names)
    batch_statistics = module.running_mean is None or trace.training
    momentum, eps = module.momentum, module.eps

    def norm(call: Call, x: Tensor) -> Tensor:
        statistics = _flat(mean, call), _flat(variance, call)
        return F.batch_norm(x, *statistics, _flat(weight, call), _flat(bias, call), batch_statistics, momentum, eps)

    def of_columns(call: Call) -> Tensor:
        # each channel's numbers side by side: across channels the kernel's last bits would depend on their number
        x = read(call)
        return norm(call, x.reshape(1, x.shape[0] * x.shape[1], -1)).view(x.shape)

    return of_columns if layout == "columns" else lambda call: norm(call, read(call)), layout


def _group_norm(trace: Trace, node: fx.Node, module: nn.GroupNorm) -> Step:
    read = trace.read(_source(node), "images")
    weight, bias = _weights(trace, module, "weight", "bias")
    groups, eps = module.num_groups, module.eps
    return lambda call: F.group_norm(read(call), groups * call.n, _flat(weight, call), _flat(bias, call), eps), "images"


def _linear(trace: Trace, node: fx.Node, module: nn.Linear) -> Step:
    several = len(trace.shape(node)) > 1  # vectors in each sample
    layout = "rows" if several else "columns"
    read = trace.read(_source(node), layout)
    weight, bias = _weights(trace, module, "weight", "bias")
    assert weight is not None

    def product(call: Call, x: Tensor) -> Tensor:
        return products(weight(call), x, None if bias is None else bias(call))

    def of_several(call: Call) -> Tensor:
        x = read(call)
        return product(call, x.flatten(1, -2).transpose(1, 2)).transpose(1, 2).unflatten(1, x.shape[1:-1])

    return of_several if several else lambda call: product(call, read(call)), layout


# What acts on every number or every channel for itself


def _elementwise(trace: Trace, node: fx.Node, function: Callable[..., Tensor], *options: Any, **named: Any) -> Step:
    layout = trace.layout(_source(node))
    read = trace.read(_source(node), layout)
    return lambda call: function(read(call), *options, **named), layout


def _curved(trace: Trace, node: fx.Node, function: Callable[..., Tensor], *options: Any, **named: Any) -> Step:
    """Elementwise, with other last bits in what is left at the end of a loop over vectors: zeros fill up each
    thread's last vector, so that a model's place has no influence."""

    def filled(x: Tensor) -> Tensor:
        more = -x.numel() % (UNROLLED * torch.get_num_threads())
        if not more:
            return function(x, *options, **named)
        return function(F.pad(x.flatten(), (0, more)), *options, **named)[: x.numel()].view(x.shape)

    return _elementwise(trace, node, filled)


def _activation(trace: Trace, node: fx.Node, module: nn.Module) -> Step:
    if getattr(module, "inplace", False):
        module = copy.copy(module)
        module.inplace = False  # pyright: ignore[reportArgumentType]
        step = _curved(trace, node, module)
        trace.changes(_source(node), node)
        return step
    return _curved(trace, node, module)


def _relu(trace: Trace, node: fx.Node, module: nn.Module | None = None) -> Step:
    inplace = module.inplace if isinstance(module, nn.ReLU) else _option(trace, node, 1, "inplace", False)
    # what no other layer reads, and no backward pass, can be overwritten: a tensor less to write and to keep
    source = _source(node)
    fresh = trace.is_read_once(source) and _overwritable(trace, source)
    step = _elementwise(trace, node, torch.relu_ if fresh else torch.relu)
    if inplace or str(node.target) == "relu_":
        trace.changes(source, node)
    return step


_KEEPS_NO_OUTPUT = (nn.Conv2d, nn.BatchNorm2d, nn.GroupNorm)  # for the backward pass


def _overwritable(trace: Trace, node: fx.Node) -> bool:
    if node.op == "call_module":
        module = trace.modules[str(node.target)]
        if trace.layout(node) == "columns":  # where others hand on another view of what they have computed
            return isinstance(module, nn.Linear)
        return isinstance(module, _KEEPS_NO_OUTPUT)
    return node.target in (operator.add, operator.iadd, torch.add, "add", "add_")


def _dropout(trace: Trace, node: fx.Node, module: nn.Dropout) -> Step:
    if trace.training and module.p > 0:
        raise Unstackable(trace.name(node))
    return _elementwise(trace, node, nn.Identity())


def _option(trace: Trace, node: fx.Node, place: int, name: str, default: Any) -> Any:
    """An argument of a traced call by its place or name."""
    given = node.args[place] if len(node.args) > place else node.kwargs.get(name, default)
    return trace.constant(given)


def _function(function: Callable[..., Tensor]) -> Callable[[Trace, fx.Node], Step]:
    def rule(trace: Trace, node: fx.Node) -> Step:
        options = [trace.constant(option) for option in node.args[1:]]
        named = {name: trace.constant(option) for name, option in node.kwargs.items()}
        if named.pop("inplace", False):
            trace.changes(_source(node), node)
        return _curved(trace, node, function, *options, **named)

    return rule


def _of_images(trace: Trace, node: fx.Node, function: Callable[..., Tensor], *options: Any, **named: Any) -> Step:
    if len(trace.shape(_source(node))) != 3:
        raise Unstackable(trace.name(node))
    read = trace.read(_source(node), "images")
    return lambda call: function(read(call), *options, **named), "images"


def _pooling(function: Callable[..., Tensor]) -> Callable[[Trace, fx.Node], Step]:
    def rule(trace: Trace, node: fx.Node) -> Step:
        options = [trace.constant(option) for option in node.args[1:]]
        return _of_images(trace, node, function, *options, **{k: trace.constant(v) for k, v in node.kwargs.items()})

    return rule


def _binary(function: Callable[[Any, Any], Tensor], changes: bool = False) -> Callable[[Trace, fx.Node], Step]:
    def rule(trace: Trace, node: fx.Node) -> Step:
        if len(node.args) != 2 or node.kwargs:
            raise Unstackable(trace.name(node))
        results = [arg for arg in node.args if trace.is_tensor(arg) and not trace.is_weight(arg)]  # pyright: ignore
        if not results:
            raise Unstackable(trace.name(node))
        trace.shape(node)
        layouts = {trace.layout(result) for result in results}  # pyright: ignore[reportArgumentType]
        weighs = len(results) < sum(trace.is_tensor(arg) for arg in node.args)
        layout = "rows" if weighs else next(one for one in ("columns", "images", "rows", "shared") if one in layouts)
        reads = [_operand(trace, node, arg, layout) for arg in node.args]
        if changes:
            trace.changes(_source(node), node)
        return lambda call: function(reads[0](call), reads[1](call)), layout

    return rule


def _operand(trace: Trace, node: fx.Node, operand: Any, layout: str) -> Callable[[Call], Any]:
    if not trace.is_tensor(operand):
        constant = trace.constant(operand)
        return lambda call: constant
    axes = len(trace.shape(node))
    if trace.is_weight(operand):
        tensor = trace.attribute(operand)
        weight, missing = trace.weight(tensor), axes - tensor.dim()
        if missing < 0:
            raise Unstackable(trace.name(node))
        return lambda call: weight(call).reshape(call.n, 1, *[1] * missing, *tensor.shape)
    if len(trace.shape(operand)) != axes:
        raise Unstackable(trace.name(node))
    return trace.read(operand, layout)


# What moves numbers about


def _reshape(trace: Trace, node: fx.Node, module: nn.Module | None = None) -> Step:
    """Flatten, view and their like: each sample keeps its numbers, in their order."""
    shape = trace.shape(node)
    trace.shape(_source(node))
    layout = trace.layout(_source(node))
    read = trace.read(_source(node), layout)
    if layout == "shared":
        return lambda call: read(call).reshape(call.samples, *shape), layout
    if layout == "columns":
        return lambda call: read(call).reshape(call.n, *shape, call.samples), layout
    rows = trace.read(_source(node), "rows")
    return lambda call: rows(call).reshape(call.n, call.samples, *shape), "rows"


def _unfolded(trace: Trace, node: fx.Node, source: fx.Node) -> tuple[Read, Callable[[Tensor], Tensor], str]:
    """A value in which axis a > 0 of one model is axis a + 1, how to get from there to a layout, and that layout."""
    if trace.layout(source) != "images":
        return trace.read(source, "rows"), lambda x: x, "rows"
    images = trace.read(source, "images")
    if len(trace.shape(node)) == 3:
        return lambda call: images(call).unflatten(1, (call.n, -1)), lambda x: x.flatten(1, 2), "images"
    return lambda call: images(call).unflatten(1, (call.n, -1)), lambda x: x.transpose(0, 1), "rows"


def _mean(trace: Trace, node: fx.Node) -> Step:
    axes = _option(trace, node, 1, "dim", None)
    keep = _option(trace, node, 2, "keepdim", False)
    source = _source(node)
    before = len(trace.shape(source)) + 1
    wanted = sorted(axis % before for axis in ([axes] if isinstance(axes, int) else axes or range(before)))
    trace.shape(node)
    if 0 in wanted:
        raise Unstackable(trace.name(node))
    wanted = [axis + 1 for axis in wanted]
    read, fold, layout = _unfolded(trace, node, source)
    return lambda call: fold(read(call).mean(wanted, keep)), layout


def _slices(trace: Trace, node: fx.Node) -> Step:
    index = trace.constant(node.args[1])
    index = index if isinstance(index, tuple) else (index,)
    everything = slice(None)
    if not all(isinstance(part, slice) for part in index) or index[0] != everything:
        raise Unstackable(trace.name(node))
    trace.shape(node)
    read, fold, layout = _unfolded(trace, node, _source(node))
    whole = (everything, everything, *index[1:])
    return lambda call: fold(read(call)[whole]), layout


def _pad(trace: Trace, node: fx.Node) -> Step:
    widths = _option(trace, node, 1, "pad", ())
    mode, value = _option(trace, node, 2, "mode", "constant"), _option(trace, node, 3, "value", None)
    if mode != "constant" or len(widths) > 2 * len(trace.shape(node)):
        raise Unstackable(trace.name(node))
    read, fold, layout = _unfolded(trace, node, _source(node))
    return lambda call: fold(F.pad(read(call), widths, value=value)), layout


def _expand(trace: Trace, node: fx.Node) -> Step:
    """A parameter as the output of every sample."""
    shape, source = trace.shape(node), _source(node)
    if not trace.is_weight(source):
        raise Unstackable(trace.name(node))
    tensor = trace.attribute(source)
    weight, missing = trace.weight(tensor), len(shape) - tensor.dim()
    if missing < 0:
        raise Unstackable(trace.name(node))

    def step(call: Call) -> Tensor:
        return weight(call).reshape(call.n, 1, *[1] * missing, *tensor.shape).expand(call.n, call.samples, *shape)

    return step, "rows"


_ACTIVATIONS = (nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid)
_ACTIVATIONS += (nn.LogSigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Identity)
_POOLINGS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d)
_MODULES: dict[type[nn.Module], Callable[[Trace, fx.Node, Any], Step]] = {
    nn.Conv2d: _convolution,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.GroupNorm: _group_norm,
    nn.Linear: _linear,
    nn.ReLU: _relu,
    nn.Dropout: _dropout,
    nn.Flatten: _reshape,
    nn.Unflatten: _reshape,
    **dict.fromkeys(_ACTIVATIONS, _activation),
    **dict.fromkeys(_POOLINGS, _of_images),
}
_FUNCTIONS: dict[Any, Callable[[Trace, fx.Node], Step]] = {
    F.relu: _relu,
    torch.relu: _relu,
    operator.getitem: _slices,
    F.pad: _pad,
    torch.mean: _mean,
    **dict.fromkeys((torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze), _reshape),
    **{of: _binary(operator.add) for of in (operator.add, torch.add)},
    **{of: _binary(operator.sub) for of in (operator.sub, torch.sub)},
    **{of: _binary(operator.mul) for of in (operator.mul, torch.mul)},
    **{of: _binary(operator.truediv) for of in (operator.truediv, torch.div)},
    operator.iadd: _binary(operator.add, changes=True),
    operator.imul: _binary(operator.mul, changes=True),
    **{of: _function(of) for of in (torch.tanh, torch.sigmoid, F.tanh, F.sigmoid, F.gelu, F.silu, F.elu, F.softplus)},
    **{of: _function(of) for of in (F.leaky_relu, F.relu6, F.selu, F.hardswish, F.mish)},
    **{of: _pooling(of) for of in (F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d)},
}
_METHODS: dict[str, Callable[[Trace, fx.Node], Step]] = {
    **dict.fromkeys(("relu", "relu_"), _relu),
    **dict.fromkeys(("flatten", "view", "reshape", "squeeze", "unsqueeze"), _reshape),
    "mean": _mean,
    "expand": _expand,
    "tanh": _function(torch.tanh),
    "sigmoid": _function(torch.sigmoid),
    "contiguous": _function(nn.Identity()),
    "add": _binary(operator.add),
    "add_": _binary(operator.add, changes=True),
    "mul": _binary(operator.mul),
}
