"""Data whose gradients are slow, so that a fault can hit a run.

dsgd-run data._target_=tests.support.slow_gradients.SlowGradients
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from dsgd.data.in_memory import QuadraticData
from dsgd.data.quadratic import Quadratic

FORK_S, SYNC_S = 0.3, 2.5
SLOWER = 30  # times as long as else takes a gradient while the slow file exists


@dataclass(frozen=True)
class SlowGradients(Quadratic):
    """The quadratics, with a pause in every gradient until `skip_file` exists, a longer one while `slow_file` exists.
    Worker i touches `skip_file`.i when it begins a gradient."""

    step_s: float = 0.03
    skip_file: str = ""
    slow_file: str = ""

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> QuadraticData:
        self.check(nodes, batch_size)
        return SlowData(self, nodes, seed, dtype)


@dataclass(frozen=True)
class FailingEvaluation(SlowGradients):
    """The quadratics, with a loss that raises for more than one sample, as in an evaluation."""

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> QuadraticData:
        return FailingEvaluationData(self, nodes, seed, dtype)


@dataclass(frozen=True)
class FailingReads(SlowGradients):
    """The quadratics, of which worker 1 fails to read a batch in the middle of a run."""

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> QuadraticData:
        return FailingReadsData(self, nodes, seed, dtype)


@dataclass(frozen=True)
class Handover(SlowGradients):
    """The quadratics. Worker 2 computes its first gradient until worker 1 begins its tenth, which has no end."""

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> QuadraticData:
        return HandoverData(self, nodes, seed, dtype)


@dataclass(frozen=True)
class SlowForks(SlowGradients):
    """The quadratics, after whose loading every fork takes a while, so that a signal can come in its midst."""

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> QuadraticData:
        os.register_at_fork(after_in_parent=lambda: time.sleep(FORK_S))
        return super().load(nodes, batch_size, seed, dtype)


@dataclass(frozen=True)
class SlowDisk(SlowGradients):
    """The quadratics, after whose loading every flush to the disk takes a while."""

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> QuadraticData:
        sync = os.fsync

        def slow(descriptor: int) -> None:
            time.sleep(SYNC_S)
            sync(descriptor)

        os.fsync = slow
        return super().load(nodes, batch_size, seed, dtype)


class SlowData(QuadraticData):
    def __init__(self, config: SlowGradients, nodes: int, seed: int, dtype: torch.dtype) -> None:
        noise = partial(config.gradient_noise, seed)
        super().__init__(config.curvature(), config.targets(nodes, seed), noise, dtype)
        self._step_s, self._skip_file, self._slow_file = config.step_s, config.skip_file, config.slow_file

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        if threading.current_thread() is threading.main_thread():  # for the limit of divergence: no gradient
            return super().batch(rank, step)
        if self._skip_file:
            Path(f"{self._skip_file}.{rank}").touch()
        until = time.monotonic() + self._step_s * (SLOWER if os.path.exists(self._slow_file) else 1)
        while (left := until - time.monotonic()) > 0 and not os.path.exists(self._skip_file):
            time.sleep(min(left, 0.1))
        return super().batch(rank, step)


class FailingEvaluationData(SlowData):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if len(outputs) > 1:
            raise RuntimeError("no such loss")
        return super().loss(outputs, targets)


class FailingReadsData(SlowData):
    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        if (rank, step) == (1, 4):
            raise OSError("the disk is gone")
        return super().batch(rank, step)


class HandoverData(SlowData):
    def __init__(self, config: SlowGradients, nodes: int, seed: int, dtype: torch.dtype) -> None:
        super().__init__(config, nodes, seed, dtype)
        self._warmed_up = False

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        if (rank, step) == (1, 10):
            Path(self._skip_file).touch()
            time.sleep(1e6)
        if (rank, step) == (2, 0):
            while self._warmed_up and not os.path.exists(self._skip_file):
                time.sleep(0.01)
            self._warmed_up = True
        return QuadraticData.batch(self, rank, step)
