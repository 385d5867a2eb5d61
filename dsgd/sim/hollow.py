"""The vector of a run that asks for time only: it has no content, and arithmetic on it takes no time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Hollow(Tensor):
    """An empty vector [0] that is its own sum, copy and multiple.

    A call of torch costs microseconds, however empty its arguments are, and an algorithm makes several in a step. What
    is not listed below torch does as with any empty vector, and the result is a plain one.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    def _itself(self, *_: Any, **__: Any) -> Hollow:
        return self

    def new_zeros(self, *size: Any, **options: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        made = super().new_zeros(*size, **options)
        return hollow(made) if made.shape == self.shape else made

    def tensor_split(self, sections: int) -> tuple[Hollow, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (self,) * sections


ELEMENTWISE = ("add", "sub", "mul", "div", "addcmul", "sqrt", "lerp")
for _name in (
    *ELEMENTWISE,
    *(f"{name}_" for name in ELEMENTWISE),
    *(f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv") for side in ("", "r", "i")),
    *("clone", "copy_", "zero_"),
):
    setattr(Hollow, _name, Hollow._itself)


def hollow(like: Tensor) -> Hollow:
    """A vector without content, of the same type of numbers."""
    return like[:0].as_subclass(Hollow)
