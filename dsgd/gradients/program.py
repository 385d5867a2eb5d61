"""Translation of a network into a program for compiled kernels: a rule for each kind of layer.

The module is traced (`dsgd.gradients.tracing`). It may contain convolution, linear layers, norms, activation functions,
sums, products, pooling, flattening, slices, padding, concatenation, dropout, embeddings and attention. All else raises
`Untranslatable`, as does a parameter that no layer uses.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from dsgd.gradients import elementwise, layer_steps
from dsgd.gradients.tracing import BatchCounters, ModuleTrace, Untranslatable, source
from dsgd.gradients.translation import RECTIFYING, Activation, NetworkProgram, Translation, gathered
from dsgd.problem.problem import Problem

KEPT = 4  # numbers for each sample and group: its mean and rate, in the room of twice as many of bf16


def network_program(problem: Problem) -> tuple[NetworkProgram, BatchCounters]:
    """Translate the training pass of a problem's module, and return the counters of its norms too. Raises
    Untranslatable for a module without a translation, and for a module with other steps in evaluation."""
    translation = Translation(problem)
    if _steps(translation.trace) != _steps(ModuleTrace(problem, training=False)):
        raise Untranslatable(f"{type(problem.module).__name__}, which takes another way in evaluation")
    *nodes, output = translation.trace.graph.nodes
    for node in nodes:
        if node.op not in ("placeholder", "get_attr") and translation.trace.is_tensor(node):
            value = _value(translation, node)
            if value is not None:
                translation.values[node] = value
    return translation.finished(output), BatchCounters(translation.trace)


def _steps(trace: ModuleTrace) -> list[str]:
    """Return the nodes of a graph as text: the called function and its arguments."""

    def given(node: fx.Node) -> Any:
        return layer_steps.dropped_share(node) if node.target is F.dropout else (node.args, node.kwargs)

    return [f"{node.op} {node.target} {given(node)}" for node in trace.graph.nodes]


def _value(translation: Translation, node: fx.Node) -> Activation | None:
    if node.op == "call_module":
        module = translation.trace.modules[str(node.target)]
        hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
        rule = None if hooks or node.kwargs or len(node.args) != 1 else _MODULES.get(type(module))
        if rule is not None:
            return rule(translation, node, module)
    else:
        known = _METHODS.get(str(node.target)) if node.op == "call_method" else _FUNCTIONS.get(node.target)
        if known is not None:
            return known(translation, node)
    raise Untranslatable(f"{translation.trace.name(node)}, which has no rule in dsgd/gradients/program.py")


# Layers


def _linear(translation: Translation, node: fx.Node, module: nn.Linear) -> Activation:
    return translation.step("linear", node, translation.source(node, axes=1), **translation.affine(module))


def _linear_function(translation: Translation, node: fx.Node) -> Activation:
    given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
    weight, bias = (_kept(translation, node, given.get(name)) for name in ("weight", "bias"))
    return translation.step("linear", node, translation.source(node, axes=1), weight=weight, bias=bias)


def _kept(translation: Translation, node: fx.Node, argument: Any) -> int:
    """Return the offset of a function's parameter, -1 for None."""
    if argument is not None and not (isinstance(argument, fx.Node) and argument.op == "get_attr"):
        raise Untranslatable(translation.trace.name(node))
    return translation.parameter(None if argument is None else translation.tensor(argument))


def _batch_norm(translation: Translation, node: fx.Node, module: nn.BatchNorm2d) -> Activation:
    if module.momentum is None or module.running_mean is None:  # of how many batches; how to evaluate
        raise Untranslatable(f"{translation.trace.name(node)} without momentum or running statistics")
    translation.refuse_if(translation.tokens, node)  # which the layer would take for channels
    value, kept = translation.source(node), translation.new(torch.Size((2 * module.num_features,)))
    statistics = {"mean": translation.buffer(module.running_mean), "variance": translation.buffer(module.running_var)}
    options = {"momentum": module.momentum, "eps": module.eps, "kept": kept.offset}
    return translation.step("norm", node, value, **translation.affine(module), **statistics, **options)


def _group_norm(translation: Translation, node: fx.Node, module: nn.GroupNorm) -> Activation:
    translation.refuse_if(translation.tokens, node)  # which the layer would take for channels
    return _normed(translation, node, module, translation.source(node), module.num_groups)


def _instance_norm(translation: Translation, node: fx.Node, module: nn.InstanceNorm2d) -> Activation:
    """Add a group norm with a group for each channel."""
    if module.running_mean is not None:
        raise Untranslatable(f"{translation.trace.name(node)} with running statistics")
    return _normed(translation, node, module, translation.source(node, axes=3), module.num_features)


def _layer_norm(translation: Translation, node: fx.Node, module: nn.LayerNorm) -> Activation:
    """Add a group norm of one group, in which each number of a sample, or of a token, is a channel."""
    value = translation.source(node)
    if value.shape != module.normalized_shape:
        raise Untranslatable(f"{translation.trace.name(node)} over some axes of a sample")
    return _normed(translation, node, module, value, 1, torch.Size((value.shape.numel(),)))


def _normed(
    translation: Translation,
    node: fx.Node,
    module: nn.Module,
    value: Activation,
    groups: int,
    as_shape: torch.Size | None = None,
) -> Activation:
    """Add a group norm. module: the layer with weight, bias and eps."""
    kept = translation.new(torch.Size((KEPT * groups,)))
    options = {"eps": module.eps, "groups": groups, "kept": kept.offset}
    return translation.step("group_norm", node, value, as_shape, **translation.affine(module), **options)


def _like(
    rule: Callable[[Translation, fx.Node, Any], Activation], layer: type[nn.Module], options: str = ""
) -> Callable[[Translation, fx.Node], Activation]:
    """Return the rule of a function that does as a layer does. options: its arguments behind the input, by the names
    that the layer has for them."""

    def translated(translation: Translation, node: fx.Node) -> Activation:
        given = dict(zip(options.split(), node.args[1:], strict=False)) | node.kwargs
        constants = {name: translation.trace.constant(value) for name, value in given.items()}
        return rule(translation, node, layer(**constants))

    return translated


def _relu(translation: Translation, node: fx.Node, module: nn.ReLU | None = None) -> Activation:
    """Rectify within the step that makes the value, if nothing else reads it."""
    value, step = translation.source(node), translation.made_by.get(source(node))
    if step is None or step.kind not in RECTIFYING or len(source(node).users) > 1:
        return gathered(translation, node, torch.arange(value.shape.numel()), rectify=True)
    step.rectify = True
    return value


def _alias(translation: Translation, node: fx.Node, module: nn.Module | None = None) -> Activation:
    """Flatten, view and their like: each sample, or token, keeps its numbers, in their order."""
    return Activation(translation.source(node).offset, translation.shape(node))


# Functions and methods


_MODULES: dict[type[nn.Module], Callable[[Translation, fx.Node, Any], Activation | None]] = {
    nn.Conv2d: layer_steps.convolution,
    nn.Linear: _linear,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.GroupNorm: _group_norm,
    nn.InstanceNorm2d: _instance_norm,
    nn.LayerNorm: _layer_norm,
    nn.ReLU: _relu,
    **dict.fromkeys(elementwise.ACTIVATIONS, elementwise.activate),
    nn.MaxPool2d: layer_steps.max_pool,
    nn.AdaptiveMaxPool2d: layer_steps.adaptive_max_pool,
    nn.AvgPool2d: layer_steps.average_pool,
    nn.AdaptiveAvgPool2d: layer_steps.adaptive_average_pool,
    nn.Flatten: _alias,
    nn.Unflatten: _alias,
    nn.Identity: _alias,
    nn.Dropout: layer_steps.dropout,
    nn.Embedding: layer_steps.embedding,
}
_POOL = "kernel_size stride padding"
_PLAIN = {F.silu: nn.SiLU, F.selu: nn.SELU, F.mish: nn.Mish, F.relu6: nn.ReLU6}
_PLAIN |= {F.hardsigmoid: nn.Hardsigmoid, F.hardswish: nn.Hardswish}
_FUNCTIONS: dict[Any, Callable[[Translation, fx.Node], Activation]] = {
    **dict.fromkeys((F.relu, torch.relu), _relu),
    **dict.fromkeys((operator.add, operator.iadd, torch.add), partial(elementwise.arithmetic, "+")),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub), partial(elementwise.arithmetic, "-")),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul), partial(elementwise.arithmetic, "*")),
    **dict.fromkeys((operator.truediv, operator.itruediv, torch.div), partial(elementwise.arithmetic, "/")),
    **dict.fromkeys((operator.neg, torch.neg), elementwise.negated),
    **dict.fromkeys((torch.cat, torch.concat), elementwise.concatenated),
    **dict.fromkeys((torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze), _alias),
    torch.mean: layer_steps.global_average_pool,
    F.linear: _linear_function,
    F.max_pool2d: _like(layer_steps.max_pool, nn.MaxPool2d, f"{_POOL} dilation ceil_mode return_indices"),
    F.avg_pool2d: _like(
        layer_steps.average_pool, nn.AvgPool2d, f"{_POOL} ceil_mode count_include_pad divisor_override"
    ),
    F.adaptive_avg_pool2d: _like(layer_steps.adaptive_average_pool, nn.AdaptiveAvgPool2d, "output_size"),
    F.adaptive_max_pool2d: _like(layer_steps.adaptive_max_pool, nn.AdaptiveMaxPool2d, "output_size return_indices"),
    F.gelu: _like(elementwise.activate, nn.GELU, "approximate"),
    F.elu: _like(elementwise.activate, nn.ELU, "alpha inplace"),
    F.leaky_relu: _like(elementwise.activate, nn.LeakyReLU, "negative_slope inplace"),
    F.softplus: _like(elementwise.activate, nn.Softplus, "beta threshold"),
    **{function: _like(elementwise.activate, layer, "inplace") for function, layer in _PLAIN.items()},
    **dict.fromkeys((torch.sigmoid, F.sigmoid), _like(elementwise.activate, nn.Sigmoid)),
    **dict.fromkeys((torch.tanh, F.tanh), _like(elementwise.activate, nn.Tanh)),
    F.dropout: layer_steps.dropped,
    F.scaled_dot_product_attention: layer_steps.attention,
    torch.transpose: layer_steps.transposed,
    torch.permute: layer_steps.permuted,
    operator.getitem: partial(elementwise.gathered_by, elementwise.slice_of),
    F.pad: partial(elementwise.gathered_by, elementwise.zeros_around),
}
_METHODS: dict[str, Callable[[Translation, fx.Node], Activation]] = {
    **dict.fromkeys(("relu", "relu_"), _relu),
    **dict.fromkeys(("add", "add_"), partial(elementwise.arithmetic, "+")),
    **dict.fromkeys(("sub", "sub_"), partial(elementwise.arithmetic, "-")),
    **dict.fromkeys(("mul", "mul_"), partial(elementwise.arithmetic, "*")),
    **dict.fromkeys(("div", "div_"), partial(elementwise.arithmetic, "/")),
    "neg": elementwise.negated,
    **dict.fromkeys(("flatten", "unflatten", "view", "reshape", "contiguous", "squeeze", "unsqueeze"), _alias),
    "transpose": layer_steps.transposed,
    "permute": layer_steps.permuted,
    "mean": layer_steps.global_average_pool,
    "sigmoid": _like(elementwise.activate, nn.Sigmoid),
    "tanh": _like(elementwise.activate, nn.Tanh),
}
