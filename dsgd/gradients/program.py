"""Translation of a network into a program for compiled kernels: a rule for each kind of layer.

The module is traced (`dsgd.gradients.tracing`). What is no convolution, linear layer, norm, activation function, sum,
pooling, flattening, slice, padding, dropout, embedding or attention raises `Untranslatable`, as does a parameter that
is not used exactly once, unless it is a table of embeddings.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from dsgd.gradients.batch_counters import BatchCounters
from dsgd.gradients.token_steps import (
    attention,
    dropout,
    dropped,
    dropped_share,
    embedding,
    permuted,
    positions,
    transposed,
)
from dsgd.gradients.tracing import ModuleTrace, Untranslatable, source
from dsgd.gradients.translation import FUNCTIONS, RECTIFYING, Activation, NetworkProgram, Translation, inverse, picked
from dsgd.gradients.windows import Pair, window_pixels
from dsgd.problem.problem import Problem

# Of a convolution, products by tiles over products by taps: with more the transforms of tiles cost what they save.
TILES_BELOW = 0.66
TILES_CHANNELS = 8  # fewer do not repay a transform


def network_program(problem: Problem) -> tuple[NetworkProgram, BatchCounters]:
    """Translate the training pass of a problem's module; return also what its norms count in it. Raises
    Untranslatable for what has no translation, and for a module that does something else in evaluation."""
    of = Translation(problem)
    if _steps(of.trace) != _steps(ModuleTrace(problem, training=False)):
        raise Untranslatable(f"{type(problem.module).__name__}, which takes another way in evaluation")
    *nodes, output = of.trace.graph.nodes
    for node in nodes:
        if node.op not in ("placeholder", "get_attr") and of.trace.is_tensor(node):
            value = _value(of, node)
            if value is not None:
                of.values[node] = value
    return of.finished(output), BatchCounters.of(of.trace)


def _steps(trace: ModuleTrace) -> list[str]:
    """Return the nodes of a graph as text: what is called, with what."""
    return [
        f"{node.op} {node.target} {dropped_share(node) if node.target is F.dropout else (node.args, node.kwargs)}"
        for node in trace.graph.nodes
    ]


def _value(of: Translation, node: fx.Node) -> Activation | None:
    if node.op == "call_module":
        module = of.trace.modules[str(node.target)]
        hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
        rule = None if hooks or node.kwargs or len(node.args) != 1 else _MODULES.get(type(module))
        if rule is not None:
            return rule(of, node, module)
    else:
        known = _METHODS.get(str(node.target)) if node.op == "call_method" else _FUNCTIONS.get(node.target)
        if known is not None:
            return known(of, node)
    raise Untranslatable(f"{of.trace.name(node)}, which has no rule in dsgd/gradients/program.py")


# Layers


Option = int | Sequence[int]


def _windows(
    of: Translation, node: fx.Node, kernel: Option, stride: Option, padding: Option, dilation: Option
) -> dict[str, Any]:
    """Return the options of a step that goes over images by a kernel."""
    size, result = of.source(node, axes=3).shape[1:], of.trace.shape(node)[1:]
    window = window_pixels(tuple(size), *map(_pair, (kernel, stride, padding, dilation))) - 1
    if window.shape[1] != result.numel():  # ceil_mode
        raise Untranslatable(of.trace.name(node))
    return {"taps": len(window), "window": window, "back": inverse(window, size.numel())}


def _pair(option: Option) -> Pair:
    return (option, option) if isinstance(option, int) else tuple(option)


def _convolution(of: Translation, node: fx.Node, module: nn.Conv2d) -> Activation:
    padding = _padding(module)
    if module.padding_mode != "zeros" or padding is None:
        raise Untranslatable(of.trace.name(node))
    windows = _windows(of, node, module.kernel_size, module.stride, padding, module.dilation)
    weight, bias = of.parameter(module.weight), of.parameter(module.bias)
    if module.groups == 1 and _has_square_taps(module):
        windows |= _tiles(of, node, windows["window"], _pair(padding))
    return of.step("convolve", node, of.source(node), weight=weight, bias=bias, groups=module.groups, **windows)


def _has_square_taps(module: nn.Conv2d) -> bool:
    return (module.kernel_size, module.stride, module.dilation) == ((3, 3), (1, 1), (1, 1))


def _tiles(of: Translation, node: fx.Node, window: Tensor, padding: Pair) -> dict[str, Any]:
    """Return the options of a convolution of 3 x 3 taps that is computed by tiles of 2 x 2 pixels, none if the taps
    themselves are less work: where most are outside of a small image, or for few channels."""
    value, (outputs, rows, columns) = of.source(node), of.trace.shape(node)
    products = 16 * (-(-rows // 2)) * (-(-columns // 2))
    worth = products < TILES_BELOW * int((window >= 0).sum()) and min(value.shape[0], outputs) >= TILES_CHANNELS
    if not worth or padding[0] != padding[1] or padding[0] > 2:
        return {}
    return {"tiles": True, "rows": value.shape[1], "columns": value.shape[2], "padding": padding[0]}


def _padding(module: nn.Conv2d) -> Option | None:
    """Return the zeros on either side of each axis; None where the two sides differ."""
    if module.padding == "valid":
        return 0
    if module.padding != "same":
        return module.padding  # pyright: ignore[reportReturnType]
    both = [dilation * (size - 1) for size, dilation in zip(module.kernel_size, module.dilation, strict=True)]
    return None if any(zeros % 2 for zeros in both) else [zeros // 2 for zeros in both]


def _linear(of: Translation, node: fx.Node, module: nn.Linear) -> Activation:
    weight, bias = of.parameter(module.weight), of.parameter(module.bias)
    return of.step("linear", node, of.source(node, axes=1), weight=weight, bias=bias)


def _batch_norm(of: Translation, node: fx.Node, module: nn.BatchNorm2d) -> Activation:
    if module.momentum is None or module.running_mean is None:  # of how many batches; how to evaluate
        raise Untranslatable(f"{of.trace.name(node)} without momentum or running statistics")
    _no_sequence(of, node)
    value, kept = of.source(node), of.new(torch.Size((2 * module.num_features,)))
    weight, bias = of.parameter(module.weight), of.parameter(module.bias)
    statistics = {"mean": of.buffer(module.running_mean), "variance": of.buffer(module.running_var)}
    options = {"momentum": module.momentum, "eps": module.eps, "kept": kept.place}
    return of.step("norm", node, value, weight=weight, bias=bias, **statistics, **options)


def _group_norm(of: Translation, node: fx.Node, module: nn.GroupNorm) -> Activation:
    _no_sequence(of, node)
    value, kept = of.source(node), of.new(torch.Size((2 * module.num_groups,)))
    weight, bias = of.parameter(module.weight), of.parameter(module.bias)
    options = {"eps": module.eps, "groups": module.num_groups, "kept": kept.place}
    return of.step("group_norm", node, value, weight=weight, bias=bias, **options)


def _no_sequence(of: Translation, node: fx.Node) -> None:
    if of.tokens:  # which the layer would take for channels
        raise Untranslatable(of.trace.name(node))


def _layer_norm(of: Translation, node: fx.Node, module: nn.LayerNorm) -> Activation:
    """A group norm of one group, in which each number of a sample, or of a token, is a channel."""
    value, kept = of.source(node), of.new(torch.Size((2,)))
    if value.shape != module.normalized_shape:
        raise Untranslatable(f"{of.trace.name(node)} over some axes of a sample")
    weight, bias = of.parameter(module.weight), of.parameter(module.bias)
    numbers = torch.Size((value.shape.numel(),))
    return of.step("group_norm", node, value, numbers, weight=weight, bias=bias, eps=module.eps, kept=kept.place)


def _activate(of: Translation, node: fx.Node, module: nn.Module) -> Activation:
    name, slope = _activation(module)
    numbers = torch.Size((of.source(node).shape.numel(),))
    return of.step("activate", node, of.source(node), numbers, function=FUNCTIONS.index(name), slope=slope)


def _activation(module: Any) -> tuple[str, float]:
    """Return the function of an activation layer, and its slope below 0."""
    match module:
        case nn.GELU():
            return ("gelu_tanh" if module.approximate == "tanh" else "gelu"), 0.0
        case nn.ELU():
            return "elu", module.alpha
        case nn.LeakyReLU():
            return "leaky_relu", module.negative_slope
    return _SMOOTH[type(module)], 0.0


def _as_layer(
    rule: Callable[[Translation, fx.Node, Any], Activation], layer: type[nn.Module], *options: str
) -> Callable[[Translation, fx.Node], Activation]:
    """Return the rule of a function that does as a layer does. options: its arguments behind the input, by the names
    that the layer has for them."""

    def of_function(of: Translation, node: fx.Node) -> Activation:
        given = dict(zip(options, node.args[1:], strict=False)) | node.kwargs
        known = {name: of.trace.constant(option) for name, option in given.items()}
        return rule(of, node, layer(**known))

    return of_function


def _relu(of: Translation, node: fx.Node, module: nn.ReLU | None = None) -> Activation:
    """Rectify within the step that makes the value, if nothing else reads it."""
    value, step = of.source(node), of.made_by.get(source(node))
    if step is None or step.kind not in RECTIFYING or len(source(node).users) > 1:
        return picked(of, node, torch.arange(value.shape.numel()), rectify=True)
    step.rectify = True
    return value


def _largest(of: Translation, node: fx.Node, module: nn.MaxPool2d) -> Activation:
    if module.return_indices:
        raise Untranslatable(of.trace.name(node))
    windows = _windows(of, node, module.kernel_size, module.stride, module.padding, module.dilation)
    return of.step("largest", node, of.source(node), **windows)


def _average(of: Translation, node: fx.Node, module: nn.AvgPool2d) -> Activation:
    stride = module.kernel_size if module.stride is None else module.stride
    windows = _windows(of, node, module.kernel_size, stride, module.padding, 1)
    inside = (windows["window"] >= 0).sum(dim=0)
    divisor = torch.full_like(inside, len(windows["window"])) if module.count_include_pad else inside
    if module.divisor_override:
        divisor = torch.full_like(inside, module.divisor_override)
    return of.step("average", node, of.source(node), **windows, divisor=divisor)


def _adaptive_average(of: Translation, node: fx.Node, module: nn.AdaptiveAvgPool2d | None = None) -> Activation:
    """Place i of n averages the pixels from floor(i size / n) to ceil((i + 1) size / n) of each axis."""
    value = of.source(node, axes=3)
    rows, columns = (
        [range(i * size // n, -(-(i + 1) * size // n)) for i in range(n)]
        for size, n in zip(value.shape[1:], of.trace.shape(node)[1:] or (1, 1), strict=True)
    )
    pixels = [[row * value.shape[2] + column for row in down for column in along] for down in rows for along in columns]
    taps = max(map(len, pixels))
    window = torch.tensor([part + [-1] * (taps - len(part)) for part in pixels]).T
    return of.step("average", node, value, taps=taps, window=window, divisor=(window >= 0).sum(dim=0))


def _alias(of: Translation, node: fx.Node, module: nn.Module | None = None) -> Activation:
    """Flatten, view and their like: each sample, or token, keeps its numbers, in their order."""
    return Activation(of.source(node).place, of.shape(node))


# Functions and methods


def _mean(of: Translation, node: fx.Node) -> Activation:
    value = of.source(node, axes=3)
    if of.trace.shape(node).numel() != value.shape[0] or _axes(of, node) != {2, 3}:
        raise Untranslatable(of.trace.name(node))
    pixels = torch.arange(value.shape[1:].numel()).unsqueeze(1)
    return of.step("average", node, value, taps=len(pixels), window=pixels, divisor=torch.tensor([len(pixels)]))


def _axes(of: Translation, node: fx.Node) -> set[int]:
    axes = of.trace.constant(node.args[1] if len(node.args) > 1 else node.kwargs.get("dim"))
    return {axis % 4 for axis in axes} if isinstance(axes, (tuple, list)) else set()


def _sum(of: Translation, node: fx.Node) -> Activation:
    if len(node.args) != 2 or node.kwargs:
        raise Untranslatable(of.trace.name(node))
    if table := positions(of, node):
        return table
    left, right = (of.read(node, argument) for argument in node.args)
    in_place = node.target in (operator.iadd, "add_") and len(source(node).users) > 1
    if left[1:] != right[1:] or in_place:  # others would read the sum, too
        raise Untranslatable(of.trace.name(node))
    return of.step("add", node, left, other=right.place)


def _picked_by(function: Callable[..., Tensor]) -> Callable[[Translation, fx.Node], Activation]:
    """Return the rule of a function that leaves numbers out, moves them, or adds zeros."""

    def rule(of: Translation, node: fx.Node) -> Activation:
        value = of.source(node)
        shape, numbers = ((of.tokens,) if of.tokens else ()) + value.shape, value.shape.numel()
        places = torch.arange(1.0, 1 + math.prod(shape), dtype=torch.float64).view(1, *shape)
        named = {name: of.trace.constant(option) for name, option in node.kwargs.items()}
        try:
            moved = function(places, *(of.trace.constant(option) for option in node.args[1:]), **named)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:  # the batch axis is picked from, too
            raise Untranslatable(of.trace.name(node)) from error
        if moved.shape != (1, *of.trace.shape(node)):
            raise Untranslatable(of.trace.name(node))
        rows = moved.long().view(-1, of.shape(node).numel()) - 1
        first, begins = rows[0], torch.arange(0, len(rows) * numbers, numbers).unsqueeze(1)
        if not torch.equal(rows, torch.where(first < 0, first, first + begins)):  # tokens take from others
            raise Untranslatable(of.trace.name(node))
        return picked(of, node, first)

    return rule


def _slice(places: Tensor, index: Any) -> Tensor:
    return places[index]


def _zeros_around(places: Tensor, widths: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    if mode != "constant" or value:
        raise ValueError("other numbers than zeros")
    return F.pad(places, widths)


_SMOOTH: dict[type[nn.Module], str] = {nn.SiLU: "silu", nn.Sigmoid: "sigmoid", nn.Tanh: "tanh"}
_MODULES: dict[type[nn.Module], Callable[[Translation, fx.Node, Any], Activation | None]] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.ReLU: _relu,
    **dict.fromkeys((nn.GELU, nn.ELU, nn.LeakyReLU, *_SMOOTH), _activate),
    nn.MaxPool2d: _largest,
    nn.AvgPool2d: _average,
    nn.AdaptiveAvgPool2d: _adaptive_average,
    nn.Flatten: _alias,
    nn.Unflatten: _alias,
    nn.Identity: _alias,
    nn.Dropout: dropout,
    nn.Embedding: embedding,
}
_FUNCTIONS: dict[Any, Callable[[Translation, fx.Node], Activation]] = {
    **dict.fromkeys((F.relu, torch.relu), _relu),
    **dict.fromkeys((operator.add, operator.iadd, torch.add), _sum),
    **dict.fromkeys((torch.flatten, torch.reshape), _alias),
    torch.mean: _mean,
    F.max_pool2d: _as_layer(
        _largest, nn.MaxPool2d, "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"
    ),
    F.avg_pool2d: _as_layer(
        _average,
        nn.AvgPool2d,
        *("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    ),
    F.adaptive_avg_pool2d: _as_layer(_adaptive_average, nn.AdaptiveAvgPool2d, "output_size"),
    F.gelu: _as_layer(_activate, nn.GELU, "approximate"),
    F.elu: _as_layer(_activate, nn.ELU, "alpha", "inplace"),
    F.leaky_relu: _as_layer(_activate, nn.LeakyReLU, "negative_slope", "inplace"),
    F.silu: _as_layer(_activate, nn.SiLU, "inplace"),
    **dict.fromkeys((torch.sigmoid, F.sigmoid), _as_layer(_activate, nn.Sigmoid)),
    **dict.fromkeys((torch.tanh, F.tanh), _as_layer(_activate, nn.Tanh)),
    F.dropout: dropped,
    F.scaled_dot_product_attention: attention,
    torch.transpose: transposed,
    torch.permute: permuted,
    operator.getitem: _picked_by(_slice),
    F.pad: _picked_by(_zeros_around),
}
_METHODS: dict[str, Callable[[Translation, fx.Node], Activation]] = {
    **dict.fromkeys(("relu", "relu_"), _relu),
    **dict.fromkeys(("add", "add_"), _sum),
    **dict.fromkeys(("flatten", "unflatten", "view", "reshape", "contiguous"), _alias),
    "transpose": transposed,
    "permute": permuted,
    "mean": _mean,
    "sigmoid": _as_layer(_activate, nn.Sigmoid),
    "tanh": _as_layer(_activate, nn.Tanh),
}
