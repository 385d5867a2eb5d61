"""Translation of the layers of transformers, and of dropout, for compiled kernels: rules as in `program.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from dsgd.gradients.tracing import Untranslatable, source
from dsgd.gradients.translation import Activation, TokenTable, Translation, gathered


def dropout(translation: Translation, node: fx.Node, module: nn.Dropout) -> Activation:
    return _drop(translation, node, module.p)


def dropped(translation: Translation, node: fx.Node) -> Activation:
    """`F.dropout`, which may be told not to drop."""
    share = dropped_share(node)
    training = translation.trace.constant(_argument(node, 2, "training", True))
    return _drop(translation, node, translation.trace.constant(share) if training else 0.0)


def dropped_share(node: fx.Node) -> Any:
    """Return the share of numbers that a call of `F.dropout` drops in training."""
    return _argument(node, 1, "p", 0.5)


def _argument(node: fx.Node, index: int, name: str, default: Any) -> Any:
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def _drop(translation: Translation, node: fx.Node, share: float) -> Activation:
    """Add a step that drops a share of the numbers."""
    value = translation.source(node)
    if share == 0:
        return value
    translation.refuse_if(share == 1, node)
    numbers = value.shape.numel()
    mask, kept = sum(before for before, _ in translation.program.drops), translation.new(value.shape)
    translation.program.drops.append((numbers, 1 - share))
    options = {"kept": kept.offset, "mask": mask, "slope": 1 / (1 - share)}
    return translation.step("dropout", node, value, torch.Size((numbers,)), **options)


def embedding(translation: Translation, node: fx.Node, module: nn.Embedding) -> Activation | None:
    """Look tokens up in a table; None for fixed ones, as positions are, which are then a `TokenTable`."""
    if module.max_norm is not None or module.padding_idx is not None or module.scale_grad_by_freq or module.sparse:
        raise Untranslatable(f"{translation.trace.name(node)} with options")
    rows = module.num_embeddings
    if source(node).op == "get_attr":
        tokens = translation.tensor(source(node))
        if (
            translation.tokens is None
            or tokens.numel() != translation.tokens
            or tokens.shape[-1] != translation.tokens
            or tokens.requires_grad
        ):
            raise Untranslatable(translation.trace.name(node))
        translation.tables[node] = TokenTable(translation.parameter(module.weight), tokens.flatten(), rows)
        return None
    value = translation.source(node)
    translation.refuse_if(value != translation.input or translation.tokens is None, node)
    translation.program.vocabulary = min(rows, translation.program.vocabulary or rows)
    return translation.step("embed", node, value, weight=translation.parameter(module.weight), rows=rows)


def position_step(translation: Translation, node: fx.Node) -> Activation | None:
    """Add a table with a row for each token to a value, None if this is no such sum."""
    for value, other in (node.args, node.args[::-1]):
        if isinstance(other, fx.Node) and (
            table := translation.tables.get(other) or _parameter_table(translation, other)
        ):
            activation = translation.read(node, value)
            numbers = activation.shape.numel()
            if activation.token_axis or translation.shape(node) != activation.shape or len(activation.shape) != 1:
                raise Untranslatable(translation.trace.name(node))
            options = {"weight": table.weight, "window": table.row, "rows": table.rows}
            return translation.step("offset", node, activation, torch.Size((numbers,)), **options)
    return None


def _parameter_table(translation: Translation, node: fx.Node) -> TokenTable | None:
    """Return a parameter [tokens, numbers], or of one more axis in front, as a table."""
    if translation.tokens is None or node.op != "get_attr":
        return None
    tensor = translation.tensor(node)
    if (
        not isinstance(tensor, nn.Parameter)
        or tensor.shape[-2:-1] != (translation.tokens,)
        or tensor.shape[:-2].numel() != 1
    ):
        return None
    return TokenTable(translation.parameter(tensor), torch.arange(translation.tokens), translation.tokens)


def transposed(translation: Translation, node: fx.Node) -> Activation:
    """Swap two axes other than the batch."""
    axes = len(translation.trace.shape(node)) + 1
    order = list(range(axes))
    first = translation.trace.constant(_argument(node, 1, "dim0", 0)) % axes
    second = translation.trace.constant(_argument(node, 2, "dim1", 0)) % axes
    order[first], order[second] = second, first
    return _in_order(translation, node, order)


def permuted(translation: Translation, node: fx.Node) -> Activation:
    axes = len(translation.trace.shape(node)) + 1
    given = node.args[1:] if len(node.args) > 2 else _argument(node, 1, "dims", ())
    return _in_order(translation, node, [axis % axes for axis in translation.trace.constant(given)])


def _in_order(translation: Translation, node: fx.Node, order: Sequence[int]) -> Activation:
    """Return a value with its axes, counted with the batch, in another order. The axis of tokens has no place in memory
    by its number: where it is costs nothing."""
    value = translation.read(node, source(node))
    translation.refuse_if(order[0] != 0, node)
    axes = [axis - 1 for axis in order[1:]]
    token_axis = axes.index(value.token_axis) if translation.tokens else 0
    if translation.tokens:
        axes = [axis - (axis > value.token_axis) for axis in axes if axis != value.token_axis]
    if axes == sorted(axes):
        return Activation(value.offset, translation.shape(node, token_axis), token_axis)
    places = torch.arange(value.shape.numel()).view(value.shape).permute(axes)
    translation.refuse_if(token_axis != value.token_axis, node)
    return gathered(translation, node, places.flatten())


def attention(translation: Translation, node: fx.Node) -> Activation:
    """Scaled dot-product attention of every head: values [heads, tokens, width], or without an axis of heads."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    q, k, v = (translation.read(node, given.pop(name, None)) for name in names[:3])
    options = {name: translation.trace.constant(option) for name, option in given.items()}
    plain = not options.get("attn_mask") and not options.get("dropout_p") and not options.get("enable_gqa")
    if translation.tokens is None or not plain or not q[1:] == k[1:] == v[1:] or q.token_axis != len(q.shape) - 1:
        raise Untranslatable(translation.trace.name(node))
    scale = options.get("scale")
    return translation.step(
        "attend",
        node,
        q,
        torch.Size((q.shape.numel(),)),
        other=k.offset,
        third=v.offset,
        groups=q.shape[:-1].numel(),
        causal=options.get("is_causal", False),
        slope=q.shape[-1] ** -0.5 if scale is None else scale,
    )
