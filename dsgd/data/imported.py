"""Data of your own: a function, named by its import path, gives what there is to train on and to test with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from dsgd.data.partition import Partition, check_share
from dsgd.models.library import imported

if TYPE_CHECKING:
    import torch

    from dsgd.data.items import Items


class Samples(Protocol):
    """What the function gives two of, as torch.utils.data.Dataset has it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, int]:
        """Input, a tensor or array of the same shape for every index, and label, from 0."""
        ...


@dataclass(frozen=True)
class Imported:
    """Two sets of samples, for training and for test: the target is imported and called with the arguments."""

    target: str  # package.module.function
    classes: int  # labels are 0 .. classes - 1
    arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise ValueError(f"classes must be >= 2, got {self.classes}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of the first training sample. Raises ValueError."""
        return tuple(self._first.shape)

    def train_samples(self, nodes: int) -> int:
        """Calls the target. Raises ValueError."""
        return len(self._sets[0])

    def check(self, nodes: int, batch_size: int) -> None:
        check_share(len(self._sets[0]), nodes, batch_size)

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> Items:
        from dsgd.data.items import Items

        partition = Partition(len(self._sets[0]), nodes, batch_size, seed)
        return Items(self._name, *self._sets, self.classes, self.input_shape, partition, dtype)

    @property
    def _name(self) -> str:
        return f"data.target={self.target}"

    @cached_property
    def _sets(self) -> tuple[Samples, Samples]:
        function = imported(self.target, "data.target")
        try:
            found = function(**self.arguments)
        except Exception as error:  # whatever it may raise
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{self._name} fails: {type(error).__name__}: {reason}") from error
        pair = isinstance(found, Sequence) and len(found) == 2
        if not pair or not all(hasattr(of, "__len__") and hasattr(of, "__getitem__") for of in found):
            what = f"{len(found)} things" if isinstance(found, Sequence) else type(found).__name__
            raise ValueError(f"{self._name} must give two data sets, for training and for test, got {what}")
        if not all(map(len, found)):
            raise ValueError(f"{self._name} must give samples, got sets of {len(found[0])} and {len(found[1])}")
        return found[0], found[1]

    @cached_property
    def _first(self) -> torch.Tensor:
        from dsgd.data import DataLost
        from dsgd.data.items import sample

        try:
            return sample(self._name, self._sets[0], 0, self.classes)[0]
        except DataLost as error:
            raise ValueError(str(error)) from error
