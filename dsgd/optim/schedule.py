"""Learning-rate schedules as functions of the samples that all workers together have processed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from dsgd.keys import Key, check_options

KINDS = ("constant", "step", "cosine")
# fields of one kind only: {field: (kind, default)}
OF_ONE_KIND = {"milestones": ("step", []), "gamma": ("step", 0.1)}


@dataclass(frozen=True)
class Schedule:
    """A multiple of `optimizer.lr`: constant, falling in steps, or along half a cosine; each with linear warm-up.

    Linear scaling rule (Goyal et al. 2017, arXiv 1706.02677): the peak is lr x (nodes x batch_size) / reference_batch.
    Warm-up: from the unscaled rate to the peak, as published there; from 0 without scaling."""

    kind: str = "constant"
    warmup_epochs: Annotated[float, Key("warm-up {:g} epochs")] = 0.0
    linear_scaling: Annotated[bool, Key("linear scaling")] = False
    reference_batch: Annotated[int | None, Key("reference batch {}")] = None
    milestones: list[float] = field(default_factory=list)  # kind=step: epochs after which gamma multiplies the rate
    gamma: float = 0.1

    def __post_init__(self) -> None:
        check_options(self, kind=KINDS)
        if not (math.isfinite(self.warmup_epochs) and self.warmup_epochs >= 0):
            raise ValueError(f"warmup_epochs must be finite and >= 0, got {self.warmup_epochs}")
        if self.reference_batch is not None and self.reference_batch < 1:
            raise ValueError(f"reference_batch must be >= 1, got {self.reference_batch}")
        if list(self.milestones) != sorted(self.milestones) or not all(m > 0 for m in self.milestones):
            raise ValueError(f"milestones must be increasing numbers of epochs > 0, got {list(self.milestones)}")
        check_options(self, gamma="> 0")
        for name, (kind, unset) in OF_ONE_KIND.items():
            if kind != self.kind and (value := getattr(self, name)) != unset:
                raise ValueError(f"{name} must be left to kind={kind}, got {value} with kind={self.kind}")

    @property
    def highest(self) -> float:
        """Return the largest factor of the milestones, 1 if they only lower the rate."""
        return max(1.0, self._power(len(self.milestones))) if self.kind == "step" else 1.0

    def _power(self, milestones: int) -> float:
        return math.prod([self.gamma] * milestones)  # beyond the largest float it is infinite; ** would raise

    def factor(self, epoch: float, epochs: float | None, scale: float) -> float:
        """Return the multiple of optimizer.lr at `epoch`: samples of all workers / size of the training set.

        epochs: end of the budget, for the cosine only. scale: factor of the linear scaling rule."""
        if epoch < self.warmup_epochs:
            start = 1.0 if scale != 1.0 else 0.0
            return start + (scale - start) * epoch / self.warmup_epochs
        if self.kind == "step":
            return scale * self._power(sum(epoch >= milestone for milestone in self.milestones))
        if self.kind == "cosine":
            assert epochs is not None
            progress = min(1.0, (epoch - self.warmup_epochs) / max(epochs - self.warmup_epochs, 1e-12))
            return scale * 0.5 * (1 + math.cos(math.pi * progress))
        return scale
