"""Data after whose loading every fork takes a while in the forking process, so that a signal can come in its midst.

dsgd-run data._target_=tests.support.slow_forks.SlowForks
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch

from dsgd.data.quadratic_loss import QuadraticData
from tests.support.slow_gradients import SlowGradients

FORK_S = 0.3


@dataclass(frozen=True)
class SlowForks(SlowGradients):
    """The quadratics with pauses in every gradient and in every fork."""

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> QuadraticData:
        os.register_at_fork(after_in_parent=lambda: time.sleep(FORK_S))
        return super().load(nodes, batch_size, seed, dtype)
