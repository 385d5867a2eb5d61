"""Data whose evaluation is slow, so that a fault can hit it.

dsgd-run data._target_=tests.support.slow_evaluation.SlowEvaluation
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from dsgd.data.classification import Classification
from dsgd.data.digits import Digits


@dataclass(frozen=True)
class SlowEvaluation(Digits):
    """The digits, with a pause in every forward pass of an evaluation."""

    pause_s: float = 0.15

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> Classification:
        data = super().load(nodes, batch_size, seed, dtype)
        data.loss = SlowLoss(self.pause_s, data.loss)  # pyright: ignore[reportAttributeAccessIssue]
        return data


@dataclass(frozen=True)
class FailingEvaluation(Digits):
    """The digits, with a loss that raises in an evaluation."""

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> Classification:
        data = super().load(nodes, batch_size, seed, dtype)
        data.loss = FailingLoss(data.loss)  # pyright: ignore[reportAttributeAccessIssue]
        return data


class SlowLoss:
    def __init__(self, pause_s: float, loss: object) -> None:
        self._pause_s = pause_s
        self._loss = loss

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            time.sleep(self._pause_s)
        return self._loss(outputs, targets)  # pyright: ignore[reportCallIssue]


class FailingLoss(SlowLoss):
    def __init__(self, loss: object) -> None:
        super().__init__(0.0, loss)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            raise RuntimeError("no such loss")
        return super().__call__(outputs, targets)
