"""Trace torch's module of attention as the operations that it consists of, for which `program.py` has rules."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F


def self_attention(
    module: nn.MultiheadAttention,
    root: nn.Module,
    query: fx.Proxy,
    key: fx.Proxy,
    value: fx.Proxy,
    key_padding_mask: fx.Proxy | None = None,
    need_weights: bool = True,
    attn_mask: fx.Proxy | Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> fx.Proxy | None:
    """Return the output of self-attention over sequences that have the batch in front, causal or without a mask; None
    for any other. root: the module that is traced. The arguments are those of the module's `forward`."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    plain = module.batch_first and not module.dropout and module.bias_k is None and not module.add_zero_attn
    if hooks or not plain or not query is key is value or key_padding_mask is not None:
        return None
    causal = is_causal and not need_weights  # the mask then is only said to be this
    if attn_mask is not None and not causal:
        mask = _read(root, attn_mask)
        if mask is None or not _is_causal(mask):
            return None
        causal = True
    width = module.embed_dim
    together = F.linear(query, module.in_proj_weight, module.in_proj_bias)  # pyright: ignore[reportArgumentType]
    q, k, v = (
        together[..., part * width : (part + 1) * width]
        .unflatten(-1, (module.num_heads, module.head_dim))
        .transpose(1, 2)
        for part in range(3)
    )
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)
    return F.linear(mixed, module.out_proj.weight, module.out_proj.bias)  # pyright: ignore[reportReturnType]


def _read(root: nn.Module, mask: fx.Proxy | Tensor) -> Tensor | None:
    """Return a mask that the module keeps; None for one that is computed or trained."""
    if isinstance(mask, Tensor):
        return mask
    return dict(root.named_buffers()).get(str(mask.node.target)) if mask.node.op == "get_attr" else None


def _is_causal(mask: Tensor) -> bool:
    later = torch.ones(mask.shape, dtype=torch.bool).triu(1)
    if mask.dtype == torch.bool:
        return torch.equal(mask, later)
    return torch.equal(mask, torch.zeros_like(mask).masked_fill(later, -torch.inf))
