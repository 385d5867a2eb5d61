"""Hold training samples out, by which options are chosen: whoever chooses by the test set reports what was chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from dsgd.streams import stream

EVALUATED = ("test", "validation")
Arrays = tuple[np.ndarray, np.ndarray]
S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The options of it, which data sets with a training and a test set have in common."""

    validation: float = 0.0  # share of the training samples that is held out; the same ones in every run
    evaluate: str = "test"  # what marks are of: test | validation, the samples that were held out

    def __post_init__(self) -> None:
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation must be in [0, 1), got {self.validation}")
        if self.evaluate not in EVALUATED:
            raise ValueError(f"evaluate must be one of {', '.join(EVALUATED)}, got {self.evaluate!r}")
        if self.evaluate == "validation" and not self.validation:
            raise ValueError("evaluate must be test with data.validation=0, got validation")

    def kept(self, samples: int) -> int:
        """Return how many of so many training samples are trained on. Raises ValueError if that leaves none, or
        nothing to evaluate."""
        held_out = round(self.validation * samples)
        if self.validation and not 0 < held_out < samples:
            rule = f"must hold out at least one of {samples} training samples, and leave one"
            raise ValueError(f"data.validation {rule}, got {self.validation:g}")
        return samples - held_out

    def indices(self, samples: int) -> Arrays:
        """Return which of so many training samples are trained on, and which are held out, both ascending."""
        order = stream("validation").permutation(samples)
        kept = self.kept(samples)
        return np.sort(order[:kept]), np.sort(order[kept:])

    def arrays(self, train: Arrays, test: Arrays) -> tuple[Arrays, Arrays]:
        """Return the samples to train on and those to evaluate. train, test: inputs [n, ...] and labels [n]."""
        if not self.validation:
            return train, test
        kept, held_out = self.indices(len(train[1]))
        evaluated = (train[0][held_out], train[1][held_out]) if self.evaluate == "validation" else test
        return (train[0][kept], train[1][kept]), evaluated

    def parts(self, train: S, test: S, part: Callable[[S, np.ndarray], S], samples: int) -> tuple[S, S]:
        """Return the same of sets whose samples are read one by one. part: makes a set of chosen samples of one."""
        if not self.validation:
            return train, test
        kept, held_out = self.indices(samples)
        return part(train, kept), part(train, held_out) if self.evaluate == "validation" else test
