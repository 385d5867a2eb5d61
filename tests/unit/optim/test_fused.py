from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsgd.optim import fused
from dsgd.optim.fused import move_by_torch, sgd_kernel
from dsgd.optim.optimizer import SGD
from tests.support.kernels import require_kernels

FACTORS = st.floats(-4, 4, width=32)
REALS = [torch.float32, torch.float64]


def vectors(size: int, seed: int, dtype: torch.dtype) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(size, dtype=dtype, generator=rng) for _ in range(3)]


@pytest.mark.parametrize("dtype", REALS)
@given(size=st.integers(1, 300), seed=st.integers(0, 99), momentum=st.floats(0, 1), by_g=FACTORS, by_v=FACTORS)
def test_the_kernel_has_the_bits_of_torch(
    dtype: torch.dtype, size: int, seed: int, momentum: float, by_g: float, by_v: float
) -> None:
    require_kernels()
    x, g, v = vectors(size, seed, dtype)
    x_other, v_other = x.clone(), v.clone()
    if (kernel := sgd_kernel(x, g, v)) is None:
        pytest.skip("torch adds in another way on this processor")
    kernel(x, g, v, momentum, by_g, by_v)
    move_by_torch(x_other, g, v_other, momentum, by_g, by_v)
    assert torch.equal(x, x_other)
    assert torch.equal(v, v_other)


@pytest.mark.parametrize("nesterov", [False, True])
def test_steps_are_those_without_the_kernel(nesterov: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = SGD(lr=0.1, momentum=0.9, nesterov=nesterov)

    def trained() -> torch.Tensor:
        x, state = vectors(77, 1, torch.float32)[0], None
        for step in range(5):
            state = optimizer.step(x, vectors(77, step, torch.float32)[1], state, 0.1)
        return x

    by_kernel = trained()
    monkeypatch.setattr("dsgd.optim.optimizer.sgd_kernel", lambda *_: None)
    assert torch.equal(by_kernel, trained())


def test_vectors_that_the_kernel_does_not_read_are_left_to_torch() -> None:
    x, g, v = vectors(64, 0, torch.float32)
    large = torch.zeros(fused.LARGEST + 1)
    for others in ((x[::2], g[:32], v[:32]), (x, g.double(), v), (x[:0], g[:0], v[:0]), (large, large, large)):
        assert sgd_kernel(*others) is None
    assert sgd_kernel(*(torch.zeros(4, dtype=torch.bfloat16) for _ in range(3))) is None


def test_a_kernel_with_other_bits_is_not_used() -> None:
    def rounded_once_more(*arguments: object) -> None:
        move_by_torch(*arguments)  # pyright: ignore[reportArgumentType]
        arguments[0].mul_(1 + 2**-23)  # pyright: ignore[reportAttributeAccessIssue]

    assert fused._has_bits_of_torch(move_by_torch, torch.float32)
    assert not fused._has_bits_of_torch(rounded_once_more, torch.float32)
