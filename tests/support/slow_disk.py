"""Data after whose loading every flush to the disk takes a while.

dsgd-run data._target_=tests.support.slow_disk.SlowDisk
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch

from dsgd.data.quadratic_loss import QuadraticData
from tests.support.slow_gradients import SlowGradients

SYNC_S = 2.5


@dataclass(frozen=True)
class SlowDisk(SlowGradients):
    """The quadratics with pauses in every gradient and in every flush."""

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> QuadraticData:
        sync = os.fsync

        def slow(descriptor: int) -> None:
            time.sleep(SYNC_S)
            sync(descriptor)

        os.fsync = slow
        return super().load(nodes, batch_size, seed, dtype)
