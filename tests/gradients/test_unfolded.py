"""Convolutions as matrix products of unfolded windows, against torch's own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from dsgd.gradients.unfolded import ALIGNED, batched_matmul, unfolded_convolution

few = st.integers(1, 3)


def numbers(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


@given(
    sizes=st.tuples(few, few, few, few),  # models, samples, channels in and out
    image=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    kernel=st.tuples(few, few),
    stride=st.tuples(few, few),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(few, few),
    biased=st.booleans(),
)
def test_a_convolution_and_its_slopes_are_torch_s(
    sizes: tuple[int, int, int, int],
    image: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    biased: bool,
) -> None:
    """Of any size, also where some taps of the kernel never meet the image."""
    axes = list(zip(image, kernel, stride, padding, dilation, strict=True))
    assume(all(pixels + 2 * pad > reach * (taps - 1) for pixels, taps, _, pad, reach in axes))
    n, b, inputs, outputs = sizes
    x = numbers(n, inputs, *image, b, seed=1)
    w = numbers(n, outputs, inputs, *kernel, seed=2)
    bias = numbers(n, outputs, seed=3) if biased else None
    plain = [
        F.conv2d(x[i].movedim(-1, 0), w[i], None if bias is None else bias[i], stride, padding, dilation)
        for i in range(n)
    ]
    expected = torch.stack(plain).movedim(1, -1)
    found = unfolded_convolution(w, x, bias, stride, padding, dilation)
    assert found.shape == (*expected.shape[:2], expected.shape[2] * expected.shape[3], b)
    found = found.view(expected.shape)
    direction = numbers(*found.shape, seed=4).detach()
    leaves = [x, w] if bias is None else [x, w, bias]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for own, right in zip(
        torch.autograd.grad((found * direction).sum(), leaves),
        torch.autograd.grad((expected * direction).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(own, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(5, 3, 7), (16, 4, 4), (16, 16, 16), (1, ALIGNED, 3)])
def test_batched_matmul_is_the_same_with_and_without_room_for_alignment(
    shape: tuple[int, int, int], biased: bool
) -> None:
    inputs, outputs, b = shape
    w, x = numbers(3, outputs, inputs, seed=1), numbers(3, inputs, b, seed=2)
    bias = numbers(3, outputs, seed=3) if biased else None
    expected = w @ x if bias is None else w @ x + bias.unsqueeze(2)
    torch.testing.assert_close(batched_matmul(w, x, bias), expected, rtol=0, atol=1e-13)
