"""What is trained on: one frozen dataclass per data set, and the form in which the rest of the package sees its data.

Importing this module imports neither torch nor scikit-learn, so that a configuration is checked quickly; `load` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dsgd.data.cifar import Cifar
from dsgd.data.digits import Digits
from dsgd.data.quadratic import Quadratic
from dsgd.data.shapes import Shapes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Cifar", "Data", "DataConfig", "DataLost", "Digits", "Quadratic", "Shapes"]


class DataLost(RuntimeError):
    """Samples cannot be had any more, in the midst of a run: one line that says why."""


class Data(Protocol):
    """A loaded data set, split over the workers. All tensors are on the CPU."""

    @property
    def samples(self) -> int:
        """Training samples: one epoch."""
        ...

    @property
    def classes(self) -> int | None:
        """Number of labels; None where accuracy means nothing."""
        ...

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without batch axis."""
        ...

    @property
    def train_set(self) -> tuple[Tensor, Tensor]:
        """All training inputs [n, *input_shape] and targets [n, ...], as in a batch but not augmented. Read only. Not
        asked for where there is a method `evaluation`, see `dsgd.data.protocols.Streamed`."""
        ...

    @property
    def test_set(self) -> tuple[Tensor, Tensor]:
        """All test inputs and targets. Read only. As `train_set`."""
        ...

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Inputs [b, *input_shape] and targets [b, ...] of worker `rank` at its own step `step`; a pure function."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean over the batch of the loss of the model's `outputs` [b, ...]: a scalar."""
        ...


class DataConfig(Protocol):
    """What the rest of the package knows of a data set before it is loaded."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without batch axis."""
        ...

    @property
    def classes(self) -> int | None:
        """Number of labels; None where accuracy means nothing."""
        ...

    def train_samples(self, nodes: int) -> int:
        """Training samples with `nodes` workers: one epoch."""
        ...

    def check(self, nodes: int, batch_size: int) -> None:
        """Raise ValueError, one line, if the data cannot be had or cannot serve `nodes` batches of `batch_size`."""
        ...

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> Data:
        """The data for one run. seed: of the run, >= 0; it orders the samples. Raises ValueError as `check`."""
        ...
