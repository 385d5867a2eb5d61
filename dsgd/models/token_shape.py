"""Tell the shape of inputs that are tokens from that of inputs that are measured, before anything is loaded."""

from __future__ import annotations


class TokenShape(tuple[int, ...]):
    """The shape [context] of one input of tokens: int64 numbers in [0, classes), whose targets, the tokens that follow,
    have the same shape. Logits are then [b, classes, context], as torch's cross entropy takes them."""

    __slots__ = ()
