"""Translation of convolutions, pooling, dropout and the layers of transformers for compiled kernels: rules as in
`program.py`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import starmap
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from dsgd.gradients.amx_routes import ImageAxis
from dsgd.gradients.tracing import Untranslatable, source
from dsgd.gradients.translation import Activation, TokenTable, Translation, gathered, inverse

# Products of a convolution by tiles over products by taps. Above this ratio the transforms cost more than they save.
TILES_BELOW = 0.66
TILES_CHANNELS = 8  # fewer do not repay a transform

Option = int | Sequence[int]

RowsColumns = tuple[int, ...]  # of the two axes of an image


@cache
def window_pixels(
    size: RowsColumns, kernel: RowsColumns, stride: RowsColumns, padding: RowsColumns, dilation: RowsColumns
) -> Tensor:
    """Return the pixel of an image under each tap of the kernel at each place, [k l, places]: 1 + its index in the
    image, row by row, or 0 outside of the image."""
    pixels = torch.arange(1.0, 1 + size[0] * size[1], dtype=torch.float64).view(1, 1, *size)
    return F.unfold(pixels, kernel, dilation, padding, stride)[0].long()


def _windows(
    translation: Translation, node: fx.Node, kernel: Option, stride: Option, padding: Option, dilation: Option
) -> dict[str, Any]:
    """Return the options of a step that goes over images by a kernel."""
    size, result = translation.source(node, axes=3).shape[1:], translation.trace.shape(node)[1:]
    window = window_pixels(tuple(size), *map(_pair, (kernel, stride, padding, dilation))) - 1
    translation.refuse_if(window.shape[1] != result.numel(), node)  # ceil_mode
    return {"taps": len(window), "window": window, "back": inverse(window, size.numel())}


def _pair(option: Option) -> RowsColumns:
    return (option, option) if isinstance(option, int) else tuple(option)


def convolution(translation: Translation, node: fx.Node, module: nn.Conv2d) -> Activation:
    padding = _padding(module)
    if module.padding_mode != "zeros" or padding is None:
        raise Untranslatable(translation.trace.name(node))
    windows = _windows(translation, node, module.kernel_size, module.stride, padding, module.dilation)
    axes = zip(
        translation.source(node).shape[1:],
        translation.trace.shape(node)[1:],
        *map(_pair, (module.kernel_size, module.stride, padding, module.dilation)),
        strict=True,
    )
    windows["axes"] = tuple(starmap(ImageAxis, axes))
    if module.groups == 1 and (module.kernel_size, module.stride, module.dilation) == ((3, 3), (1, 1), (1, 1)):
        windows |= _tiles(translation, node, windows["window"], _pair(padding))
    places = translation.affine(module)
    return translation.step("convolve", node, translation.source(node), groups=module.groups, **places, **windows)


def _tiles(translation: Translation, node: fx.Node, window: Tensor, padding: RowsColumns) -> dict[str, Any]:
    """Return the options of a convolution of 3 x 3 taps that is computed by tiles of 2 x 2 pixels; empty if the taps
    themselves are less work: if most are outside of a small image, or for few channels."""
    value, (outputs, rows, columns) = translation.source(node), translation.trace.shape(node)
    products = 16 * (-(-rows // 2)) * (-(-columns // 2))
    worth = products < TILES_BELOW * int((window >= 0).sum()) and min(value.shape[0], outputs) >= TILES_CHANNELS
    if not worth or padding[0] != padding[1] or padding[0] > 2:
        return {}
    return {"tiles": True, "rows": value.shape[1], "columns": value.shape[2], "padding": padding[0]}


def _padding(module: nn.Conv2d) -> Option | None:
    """Return the zeros on either side of each axis; None if the two sides differ."""
    if module.padding == "valid":
        return 0
    if module.padding != "same":
        return module.padding  # pyright: ignore[reportReturnType]
    both = [dilation * (size - 1) for size, dilation in zip(module.kernel_size, module.dilation, strict=True)]
    return None if any(zeros % 2 for zeros in both) else [zeros // 2 for zeros in both]


def max_pool(translation: Translation, node: fx.Node, module: nn.MaxPool2d) -> Activation:
    translation.refuse_if(module.return_indices, node)
    windows = _windows(translation, node, module.kernel_size, module.stride, module.padding, module.dilation)
    return translation.step("max_pool", node, translation.source(node), **windows)


def average_pool(translation: Translation, node: fx.Node, module: nn.AvgPool2d) -> Activation:
    stride = module.kernel_size if module.stride is None else module.stride
    windows = _windows(translation, node, module.kernel_size, stride, module.padding, 1)
    inside = (windows["window"] >= 0).sum(dim=0)
    divisor = torch.full_like(inside, len(windows["window"])) if module.count_include_pad else inside
    if module.divisor_override:
        divisor = torch.full_like(inside, module.divisor_override)
    return translation.step("average_pool", node, translation.source(node), **windows, divisor=divisor)


def adaptive_average_pool(
    translation: Translation, node: fx.Node, module: nn.AdaptiveAvgPool2d | None = None
) -> Activation:
    window = _adaptive_window(translation, node)
    divisor = (window >= 0).sum(dim=0)
    return translation.step(
        "average_pool", node, translation.source(node), taps=len(window), window=window, divisor=divisor
    )


def adaptive_max_pool(translation: Translation, node: fx.Node, module: nn.AdaptiveMaxPool2d) -> Activation:
    translation.refuse_if(module.return_indices, node)
    window = _adaptive_window(translation, node)
    return translation.step("max_pool", node, translation.source(node), taps=len(window), window=window)


def _adaptive_window(translation: Translation, node: fx.Node) -> Tensor:
    """Place i of n has the pixels from floor(i size / n) to ceil((i + 1) size / n) of each axis."""
    value = translation.source(node, axes=3)
    rows, columns = (
        [range(i * size // n, -(-(i + 1) * size // n)) for i in range(n)]
        for size, n in zip(value.shape[1:], translation.trace.shape(node)[1:] or (1, 1), strict=True)
    )
    pixels = [[row * value.shape[2] + column for row in down for column in along] for down in rows for along in columns]
    taps = max(map(len, pixels))
    return torch.tensor([part + [-1] * (taps - len(part)) for part in pixels]).T


def global_average_pool(translation: Translation, node: fx.Node) -> Activation:
    value = translation.source(node, axes=3)
    if translation.trace.shape(node).numel() != value.shape[0] or _axes(translation, node) != {2, 3}:
        raise Untranslatable(translation.trace.name(node))
    pixels = torch.arange(value.shape[1:].numel()).unsqueeze(1)
    return translation.step(
        "average_pool", node, value, taps=len(pixels), window=pixels, divisor=torch.tensor([len(pixels)])
    )


def _axes(translation: Translation, node: fx.Node) -> set[int]:
    axes = translation.trace.constant(node.args[1] if len(node.args) > 1 else node.kwargs.get("dim"))
    return {axis % 4 for axis in axes} if isinstance(axes, (tuple, list)) else set()


def dropout(translation: Translation, node: fx.Node, module: nn.Dropout) -> Activation:
    return _drop(translation, node, module.p)


def dropped(translation: Translation, node: fx.Node) -> Activation:
    """Add the step of `F.dropout`, which may be disabled by its argument `training`."""
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
    """Look tokens up in a table; returns None for fixed tokens, such as positions, which become a `TokenTable`."""
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
    """Add a table with a row for each token to a value; returns None for another sum."""
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
    """Return a value with its axes, counted with the batch, in another order. The number of the token axis does not
    affect memory, so moving it costs nothing."""
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
