"""Stacked counterparts of layers with parameters: convolutions, normalisations, linear layers."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from dsgd.gradients.tracing import ModuleTrace, Read, StackedCall, Step, Unstackable, source
from dsgd.gradients.unfolded import batched_matmul, is_aligned, unfolded_convolution

FEW_PIXELS = 4  # of the result: up to here, a convolution is computed from unfolded windows


def _weights(trace: ModuleTrace, module: nn.Module, *names: str) -> list[Read | None]:
    tensors = [getattr(module, name) for name in names]
    return [None if tensor is None else trace.weight(tensor) for tensor in tensors]


def _flat(read: Read | None, call: StackedCall) -> Tensor | None:
    return None if read is None else read(call).flatten()


def convolution(trace: ModuleTrace, node: fx.Node, module: nn.Conv2d) -> Step:
    """Convolve images by N groups; small ones by unfolding; the same images for all models by one plain convolution."""
    if module.padding_mode != "zeros":
        raise Unstackable(trace.name(node))
    weight, bias = _weights(trace, module, "weight", "bias")
    assert weight is not None
    stride, padding, dilation, groups = module.stride, module.padding, module.dilation, module.groups
    shared = trace.layout(source(node)) == "shared" and groups == 1
    shape = trace.shape(node)
    if groups == 1 and not shared and not isinstance(padding, str) and shape[1:].numel() <= FEW_PIXELS:
        columns = trace.read(source(node), "columns")

        def unfolded(call: StackedCall) -> Tensor:
            own_bias = None if bias is None else bias(call)
            y = unfolded_convolution(weight(call), columns(call), own_bias, stride, padding, dilation)
            return y.view(call.n, *shape, call.samples)

        return unfolded, "columns"
    images = trace.read(source(node), "shared" if shared else "images")

    def grouped(call: StackedCall) -> Tensor:
        kernels = weight(call).flatten(0, 1)
        count = 1 if shared else groups * call.n
        return F.conv2d(images(call), kernels, _flat(bias, call), stride, padding, dilation, count)

    return grouped, "images"


def batch_norm(trace: ModuleTrace, node: fx.Node, module: nn.BatchNorm2d) -> Step:
    """Normalise the channels of all models as those of one image."""
    if module.momentum is None:  # would need to know how many batches each worker has seen
        raise Unstackable(f"{trace.name(node)} with momentum=None")
    one_pixel = trace.shape(node)[1:].numel() == 1
    layout = "columns" if one_pixel or trace.layout(source(node)) == "columns" else "images"
    read = trace.read(source(node), layout)
    mean, variance, weight, bias = _weights(trace, module, "running_mean", "running_var", "weight", "bias")
    batch_statistics = module.running_mean is None or trace.training
    momentum, eps = module.momentum, module.eps

    def norm(call: StackedCall) -> Tensor:
        x = read(call)
        # each channel's numbers side by side: across channels the kernel's last bits would depend on their number
        images = x.reshape(1, x.shape[0] * x.shape[1], -1) if layout == "columns" else x
        statistics = _flat(mean, call), _flat(variance, call)
        affine = _flat(weight, call), _flat(bias, call)
        y = F.batch_norm(images, *statistics, *affine, batch_statistics, momentum, eps)
        return y.view(x.shape) if layout == "columns" else y  # no view of images: ReLU may overwrite them

    return norm, layout


def group_norm(trace: ModuleTrace, node: fx.Node, module: nn.GroupNorm) -> Step:
    """Normalise N times as many groups."""
    read = trace.read(source(node), "images")
    weight, bias = _weights(trace, module, "weight", "bias")
    groups, eps = module.num_groups, module.eps
    return lambda call: F.group_norm(read(call), groups * call.n, _flat(weight, call), _flat(bias, call), eps), "images"


def linear(trace: ModuleTrace, node: fx.Node, module: nn.Linear) -> Step:
    """Multiply by all models' weights at once."""
    layout = "rows" if len(trace.shape(node)) > 1 else "columns"  # rows: vectors in each sample
    read = trace.read(source(node), layout)
    weight, bias = _weights(trace, module, "weight", "bias")
    assert weight is not None

    def multiply(call: StackedCall) -> Tensor:
        w, x, b = weight(call), read(call), None if bias is None else bias(call)
        return batched_matmul(w, x, b) if layout == "columns" else multiplied_rows(w, x, b)

    return multiply, layout


def multiplied_rows(w: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply x [n, b, ..., in] by w [n, out, in] and add bias [n, out]: [n, b, ..., out], in the order in which the
    next layer reads it, if no matrix needs padding."""
    rows = x.flatten(1, -2)
    if is_aligned(w.shape[1], w.shape[2], rows.shape[1]):
        across = w.transpose(1, 2)
        y = torch.bmm(rows, across) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, across)
    else:
        y = batched_matmul(w, rows.transpose(1, 2), bias).transpose(1, 2)
    return y.unflatten(1, x.shape[1:-1])
