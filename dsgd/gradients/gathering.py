"""Translation of slices, padding and concatenation for compiled kernels: rules as in `program.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from dsgd.gradients.tracing import Untranslatable
from dsgd.gradients.translation import Activation, Translation, gathered, inverse


def gathered_by(function: Callable[..., Tensor]) -> Callable[[Translation, fx.Node], Activation]:
    """Return the rule of a function that leaves numbers out, moves them, or adds zeros."""

    def rule(translation: Translation, node: fx.Node) -> Activation:
        value = translation.source(node)
        shape, numbers = ((translation.tokens,) if translation.tokens else ()) + value.shape, value.shape.numel()
        places = torch.arange(1.0, 1 + math.prod(shape), dtype=torch.float64).view(1, *shape)
        named = {name: translation.trace.constant(option) for name, option in node.kwargs.items()}
        try:
            moved = function(places, *(translation.trace.constant(option) for option in node.args[1:]), **named)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:  # the batch axis is picked from, too
            raise Untranslatable(translation.trace.name(node)) from error
        if moved.shape != (1, *translation.trace.shape(node)):
            raise Untranslatable(translation.trace.name(node))
        rows = moved.long().view(-1, translation.shape(node).numel()) - 1
        first, begins = rows[0], torch.arange(0, len(rows) * numbers, numbers).unsqueeze(1)
        if not torch.equal(rows, torch.where(first < 0, first, first + begins)):  # tokens take from others
            raise Untranslatable(translation.trace.name(node))
        return gathered(translation, node, first)

    return rule


def concatenated(translation: Translation, node: fx.Node) -> Activation:
    """Sum the values, each with zeros where the others are."""
    read: Any = node.args[0] if node.args else ()
    values = [translation.read(node, item) for item in read]
    if len({value.token_axis for value in values}) != 1:
        raise Untranslatable(translation.trace.name(node))
    token_axis, given = values[0].token_axis, node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    axis = translation.trace.constant(given) % (len(translation.trace.shape(node)) + 1) - 1
    if axis < 0 or (translation.tokens and axis == token_axis):
        raise Untranslatable(translation.trace.name(node))
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
