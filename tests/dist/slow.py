"""Data whose gradients take a while, so that a fault can hit a run: `data._target_=tests.dist.slow.Slow`."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from dsgd.data.quadratic import Quadratic
from dsgd.data.quadratic_loss import QuadraticData


@dataclass(frozen=True)
class Slow(Quadratic):
    """The quadratics, with a pause in every gradient."""

    step_s: float = 0.008

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> QuadraticData:
        self.check(nodes, batch_size)
        return SlowData(self, nodes, seed, dtype, self.step_s)


@dataclass(frozen=True)
class Unmeasurable(Slow):
    """Those whose loss over more than one sample, an evaluation's, cannot be had."""

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> QuadraticData:
        return UnmeasurableData(self, nodes, seed, dtype, self.step_s)


class SlowData(QuadraticData):
    def __init__(self, config: Quadratic, nodes: int, seed: int, dtype: torch.dtype, step_s: float) -> None:
        super().__init__(config, nodes, seed, dtype)
        self._step_s = step_s

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        time.sleep(self._step_s)
        return super().batch(rank, step)


class UnmeasurableData(SlowData):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if len(outputs) > 1:
            raise RuntimeError("no such loss")
        return super().loss(outputs, targets)
