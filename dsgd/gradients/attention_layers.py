"""Stacked counterparts of the layers of a transformer: embedding, layer norm, attention. All values are rows."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from dsgd.gradients.tracing import ModuleTrace, StackedCall, Step, Unstackable, source


def embedding(trace: ModuleTrace, node: fx.Node, module: nn.Embedding) -> Step:
    """Look tokens up in the tables of all models, one below the other."""
    if module.padding_idx is not None or module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
        raise Unstackable(f"{trace.name(node)} with options")
    read, weight = trace.read(source(node), "rows"), trace.weight(module.weight)
    classes, name = module.num_embeddings, trace.name(node)

    def look_up(call: StackedCall) -> Tensor:
        tokens = read(call)
        if tokens.max() >= classes:  # it would be looked up in the table of the next model
            raise IndexError(f"{name} has {classes} rows, got token {int(tokens.max())}")
        begins = torch.arange(0, call.n * classes, classes, device=tokens.device)
        return F.embedding(tokens + begins.view(-1, *[1] * (tokens.dim() - 1)), weight(call).flatten(0, 1))

    return look_up, "rows"


def layer_norm(trace: ModuleTrace, node: fx.Node, module: nn.LayerNorm) -> Step:
    """Normalise the last axes, then scale by each model's own weights."""
    read, shape, eps = trace.read(source(node), "rows"), module.normalized_shape, module.eps
    affine = [None if own is None else trace.weight(own) for own in (module.weight, module.bias)]
    missing = len(trace.shape(node)) - len(shape)

    def norm(call: StackedCall) -> Tensor:
        y = F.layer_norm(read(call), shape, eps=eps)
        weight, bias = (None if own is None else own(call).view(call.n, 1, *[1] * missing, *shape) for own in affine)
        if weight is None:
            return y
        return y * weight if bias is None else torch.addcmul(bias, y, weight)

    return norm, "rows"


def transpose(trace: ModuleTrace, node: fx.Node) -> Step:
    """Swap two axes other than the batch."""
    first, second = (axis % (len(trace.shape(node)) + 1) for axis in trace.constant(node.args[1:]))
    if node.kwargs or 0 in (first, second):
        raise Unstackable(trace.name(node))
    read = trace.read(source(node), "rows")
    return lambda call: read(call).transpose(first + 1, second + 1), "rows"


def scaled_dot_product(trace: ModuleTrace, node: fx.Node) -> Step:
    """Attend with the samples of all models as those of one batch."""
    options = {name: trace.constant(option) for name, option in node.kwargs.items()}
    if len(node.args) != 3 or not options.keys() <= {"is_causal", "scale"} or len(trace.shape(node)) != 3:
        raise Unstackable(trace.name(node))
    reads = [trace.read(argument, "rows") for argument in node.args]  # pyright: ignore[reportArgumentType]

    def attend(call: StackedCall) -> Tensor:
        q, k, v = (read(call).flatten(0, 1) for read in reads)
        return F.scaled_dot_product_attention(q, k, v, **options).unflatten(0, (call.n, call.samples))

    return attend, "rows"
