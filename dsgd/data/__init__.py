"""Define data sets: a frozen dataclass for the options of each, and the interface of loaded data.

Importing this module does not import torch, so that a configuration is checked quickly; `load` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dsgd.data.built_in import Digits, Shapes
from dsgd.data.cifar import Cifar
from dsgd.data.idx import Idx
from dsgd.data.quadratic import Quadratic
from dsgd.data.text import Text

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Cifar", "Data", "DataConfig", "DataLost", "Digits", "Idx", "Quadratic", "Shapes", "Text"]


class DataLost(RuntimeError):
    """Raised during a run when samples can no longer be read: one line that says why."""


class Data(Protocol):
    """A loaded data set, split over the workers. All tensors are on the CPU."""

    @property
    def samples(self) -> int:
        """Number of training samples: one epoch."""
        ...

    @property
    def classes(self) -> int | None:
        """Number of labels; None if accuracy has no meaning."""
        ...

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without batch axis."""
        ...

    @property
    def train_set(self) -> tuple[Tensor, Tensor]:
        """Return all training inputs [n, *input_shape] and targets [n, ...], as in a batch but not augmented. Read
        only. Not called for data with a method `evaluation`, see `dsgd.data.protocols.StreamedEvaluation`."""
        ...

    @property
    def test_set(self) -> tuple[Tensor, Tensor]:
        """Return all test inputs and targets, likewise."""
        ...

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs [b, *input_shape] and targets [b, ...] of a worker at its own step. A pure function."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over the batch of the loss of the model's `outputs` [b, ...]: a scalar."""
        ...


class DataConfig(Protocol):
    """The options of a data set, and its properties before it is loaded."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without batch axis; a `TokenShape` for tokens."""
        ...

    @property
    def classes(self) -> int | None:
        """Number of labels; None if accuracy has no meaning."""
        ...

    def train_samples(self, nodes: int) -> int:
        """Return the number of training samples with `nodes` workers: one epoch."""
        ...

    def check(self, nodes: int, batch_size: int) -> None:
        """Raise ValueError, one line, if the data are missing or too few for `nodes` batches of `batch_size`."""
        ...

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> Data:
        """Load the data for one run. seed: seed of the run, >= 0; it orders the samples. Raises ValueError as
        `check`."""
        ...
