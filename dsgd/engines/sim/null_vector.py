"""The parameter vector of a timing-only run: it has no entries, and arithmetic on it takes no time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class NullVector(Tensor):
    """An empty vector [0] whose arithmetic returns itself.

    A call of torch costs microseconds even for empty tensors, and an algorithm makes several in a step. Operations that
    are not listed below are torch's own, and return plain empty tensors.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    def _itself(self, *_: Any, **__: Any) -> NullVector:
        return self

    def new_zeros(self, *size: Any, **options: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        made = super().new_zeros(*size, **options)
        return null_vector(made) if made.shape == self.shape else made

    def tensor_split(self, sections: int) -> tuple[NullVector, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (self,) * sections


ELEMENTWISE = ("add", "sub", "mul", "div", "addcmul", "addcdiv", "sqrt", "lerp")
for _name in (
    *ELEMENTWISE,
    *(f"{name}_" for name in ELEMENTWISE),
    *(f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv") for side in ("", "r", "i")),
    *("clone", "copy_", "zero_"),
):
    setattr(NullVector, _name, NullVector._itself)


def null_vector(like: Tensor) -> NullVector:
    """Return a null vector with the dtype of `like`."""
    return like[:0].as_subclass(NullVector)
