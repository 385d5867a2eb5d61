"""Data whose gradients take a while, so that a fault can hit a run.

dsgd-run data._target_=tests.support.slow_gradients.Slow
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from dsgd.data.quadratic import Quadratic
from dsgd.data.quadratic_loss import QuadraticData


@dataclass(frozen=True)
class Slow(Quadratic):
    """The quadratics, with a pause in every gradient, until there is a file `hurry`. A worker that begins with its
    first gradient makes a file `hurry.RANK`."""

    step_s: float = 0.03
    hurry: str = ""

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> QuadraticData:
        self.check(nodes, batch_size)
        return SlowData(self, nodes, seed, dtype)


@dataclass(frozen=True)
class Unmeasurable(Slow):
    """Those whose loss over more than one sample, an evaluation's, cannot be had."""

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> QuadraticData:
        return UnmeasurableData(self, nodes, seed, dtype)


@dataclass(frozen=True)
class Unreadable(Slow):
    """Those that worker 1 loses in the midst of a run."""

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> QuadraticData:
        return UnreadableData(self, nodes, seed, dtype)


class SlowData(QuadraticData):
    def __init__(self, config: Slow, nodes: int, seed: int, dtype: torch.dtype) -> None:
        noise = partial(config.gradient_noise, seed)
        super().__init__(config.curvature(), *config.targets(nodes, seed), noise, dtype)
        self._step_s, self._hurry = config.step_s, config.hurry

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        if step == 0 and self._hurry:
            Path(f"{self._hurry}.{rank}").touch()
        if not os.path.exists(self._hurry):
            time.sleep(self._step_s)
        return super().batch(rank, step)


class UnmeasurableData(SlowData):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if len(outputs) > 1:
            raise RuntimeError("no such loss")
        return super().loss(outputs, targets)


class UnreadableData(SlowData):
    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        if (rank, step) == (1, 4):
            raise OSError("the disk is gone")
        return super().batch(rank, step)
