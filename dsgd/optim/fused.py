"""Steps of SGD in one pass over memory, by the kernel of csrc/optimizer.h: each of torch's operations takes a pass, and
some microseconds to begin. Imports torch in functions alone, as the options of a run are checked without it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from dsgd.host.kernels import kernel_library

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LARGEST = 32768  # numbers: torch computes more of them in several threads
REALS = {"torch.float32": ("float", ctypes.c_float), "torch.float64": ("double", ctypes.c_double)}
SIZES = (1, 2, 7, 8, 15, 16, 17, 33, 64, 1000)

# Updates x and v in place: x, g, v, all [d], momentum, and the factors of g and of the new v in x.
Kernel = Callable[["Tensor", "Tensor", "Tensor", float, float, float], None]


def sgd_kernel(x: Tensor, g: Tensor, v: Tensor) -> Kernel | None:
    """Return a function that makes a step on these vectors [d] as `move_by_torch` does, bit for bit, or None."""
    if not 0 < x.numel() <= LARGEST or x.device.type != "cpu" or not x.dtype == g.dtype == v.dtype:
        return None
    contiguous = x.is_contiguous() and g.is_contiguous() and v.is_contiguous()
    return _kernel_of(x.dtype) if contiguous else None


def move_by_torch(x: Tensor, g: Tensor, v: Tensor, momentum: float, by_g: float, by_v: float) -> None:
    """Update v = momentum v + g, then x = x + by_g g (unless by_g is 0), then x = x + by_v v."""
    v.mul_(momentum).add_(g)
    if by_g:
        x.add_(g, alpha=by_g)
    x.add_(v, alpha=by_v)


@cache
def _kernel_of(dtype: torch.dtype) -> Kernel | None:
    """Return the kernel for this processor, or None: without one, or if it has other bits than torch here."""
    library = kernel_library()
    if library is None or str(dtype) not in REALS:
        return None
    real, number = REALS[str(dtype)]
    function = library[f"sgd_{real}_{library.extension().decode()}"]
    function.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_long, *[number] * 3]
    function.restype = None
    kernel = partial(_move, function)
    return kernel if _has_bits_of_torch(kernel, dtype) else None


def _move(
    function: Callable[..., None], x: Tensor, g: Tensor, v: Tensor, momentum: float, by_g: float, by_v: float
) -> None:
    function(x.data_ptr(), g.data_ptr(), v.data_ptr(), x.numel(), momentum, by_g, by_v)


def _has_bits_of_torch(kernel: Kernel, dtype: torch.dtype) -> bool:
    """Return whether two steps of the kernel, on vectors of several lengths, have the bits of torch's operations."""
    import torch

    rng = torch.Generator().manual_seed(0)
    for size in SIZES:
        for by_g in (-0.1, 0.0):
            xs, gs, vs = (torch.randn(2, size, dtype=dtype, generator=rng) for _ in range(3))
            others = xs.clone(), vs.clone()
            for x, g, v, x_other, v_other in zip(xs, gs, vs, *others, strict=True):
                kernel(x, g, v, 0.9, by_g, -0.037)
                move_by_torch(x_other, g, v_other, 0.9, by_g, -0.037)
            if not (torch.equal(xs, others[0]) and torch.equal(vs, others[1])):
                return False
    return True
