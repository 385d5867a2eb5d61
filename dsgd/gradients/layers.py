"""Stacked counterparts of layers: the table of rules for every kind of layer.

A rule gets the trace and a node of it, and returns the function that computes the node's value for all N models, and
the layout of that value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from dsgd.gradients import attention_layers as attention
from dsgd.gradients import plain_layers as plain
from dsgd.gradients import weighted_layers as weighted
from dsgd.gradients.plain_layers import FunctionRule, binary_rule, function_rule, pooling_rule
from dsgd.gradients.tracing import ModuleTrace, Step, Unstackable

_NO_RULE = "which has no rule in dsgd/gradients/layers.py"


def translate(trace: ModuleTrace, node: fx.Node) -> Step:
    """Translate a node for N models. Raises Unstackable for a layer without a rule."""
    if node.op == "call_module":
        module = trace.modules[str(node.target)]
        rule = _MODULES.get(type(module))
        hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
        if rule is None or hooks or node.kwargs or len(node.args) != 1:
            raise Unstackable(f"{trace.name(node)}, {_NO_RULE}")
        return rule(trace, node, module)
    function = _METHODS.get(str(node.target)) if node.op == "call_method" else _FUNCTIONS.get(node.target)
    if function is None:
        raise Unstackable(f"{trace.name(node)}, {_NO_RULE}")
    return function(trace, node)


_ACTIVATIONS = (nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid)
_ACTIVATIONS += (nn.LogSigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Identity)
_POOLINGS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d)
_MODULES: dict[type[nn.Module], Callable[[ModuleTrace, fx.Node, Any], Step]] = {
    nn.Conv2d: weighted.convolution,
    nn.BatchNorm1d: weighted.batch_norm,
    nn.BatchNorm2d: weighted.batch_norm,
    nn.GroupNorm: weighted.group_norm,
    nn.Linear: weighted.linear,
    nn.LayerNorm: attention.layer_norm,
    nn.Embedding: attention.embedding,
    nn.ReLU: plain.relu,
    nn.Dropout: plain.dropout,
    nn.Flatten: plain.reshape,
    nn.Unflatten: plain.reshape,
    **dict.fromkeys(_ACTIVATIONS, plain.activation),
    **dict.fromkeys(_POOLINGS, plain.image_layer),
}
_FUNCTIONS: dict[Any, FunctionRule] = {
    F.relu: plain.relu,
    torch.relu: plain.relu,
    operator.getitem: plain.slices,
    F.pad: plain.pad,
    torch.mean: plain.mean,
    torch.transpose: attention.transpose,
    F.scaled_dot_product_attention: attention.scaled_dot_product,
    **dict.fromkeys((torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze), plain.reshape),
    **{of: binary_rule(operator.add) for of in (operator.add, torch.add)},
    **{of: binary_rule(operator.sub) for of in (operator.sub, torch.sub)},
    **{of: binary_rule(operator.mul) for of in (operator.mul, torch.mul)},
    **{of: binary_rule(operator.truediv) for of in (operator.truediv, torch.div)},
    operator.iadd: binary_rule(operator.add, inplace=True),
    operator.imul: binary_rule(operator.mul, inplace=True),
    **{of: function_rule(of) for of in (torch.tanh, torch.sigmoid, F.tanh, F.sigmoid, F.gelu, F.silu, F.elu)},
    **{of: function_rule(of) for of in (F.softplus, F.leaky_relu, F.relu6, F.selu, F.hardswish, F.mish)},
    **{of: pooling_rule(of) for of in (F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d)},
}
_METHODS: dict[str, FunctionRule] = {
    **dict.fromkeys(("relu", "relu_"), plain.relu),
    **dict.fromkeys(("flatten", "unflatten", "view", "reshape", "squeeze", "unsqueeze"), plain.reshape),
    "mean": plain.mean,
    "transpose": attention.transpose,
    "expand": plain.expand,
    "tanh": function_rule(torch.tanh),
    "sigmoid": function_rule(torch.sigmoid),
    "contiguous": function_rule(nn.Identity()),
    "add": binary_rule(operator.add),
    "add_": binary_rule(operator.add, inplace=True),
    "mul": binary_rule(operator.mul),
}
