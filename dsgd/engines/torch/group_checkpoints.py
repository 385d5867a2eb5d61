"""Agree in all ranks of a process group on the steps of checkpoints, and on the checkpoint to resume from."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch

from dsgd.engines.torch.group_channel import GroupChannel, Wait

PERIOD_S = 1.0  # between two sums of wishes


class Order(Enum):
    """What all ranks do at the end of a cycle."""

    CONTINUE = "continue"
    STORE = "store"
    STORE_AND_STOP = "store and stop"


class CheckpointOrders:
    """Decide, the same in all ranks, at the end of which cycles they store their states.

    From time to time all ranks start a sum of their wishes, after the same step. They read it at the next such step,
    when it has long arrived: so no rank waits for another that is less than a period behind. Rank 0 knows the time of a
    step, and says how many steps a period has: at most twice as many as the period before, so that fast first steps do
    not fix a long period for slow ones.

    channel: a process group for these sums alone. every_s: seconds between checkpoints, the first one at once; None:
    only before a stop. steps: at which the run begins."""

    def __init__(
        self, channel: GroupChannel, device: torch.device, every_s: float | None, steps: int, resumed: bool
    ) -> None:
        self._channel, self._device, self._every_s = channel, device, every_s
        self._stored_at = time.monotonic() if resumed else -math.inf
        self._latest, self._next = (steps, time.monotonic()), steps
        self._sum: Wait | None = None

    def at_end_of_cycle(self, steps: int, stop: bool) -> Order:
        """Return the order for the state after `steps` steps. stop: this rank wants the run to end. Every rank makes
        the same calls."""
        if steps < self._next:
            return Order.CONTINUE
        stops, stores, period = (0, 0, 1) if self._sum is None else self._sum().tolist()
        self._next = steps + max(int(period), 1)
        if stores or stops:
            self._stored_at = time.monotonic()
        if not stops:
            self._sum = self._start_sum(steps, stop)
        return Order.STORE_AND_STOP if stops else Order.STORE if stores else Order.CONTINUE

    def _start_sum(self, steps: int, stop: bool) -> Wait:
        """Start to sum the wishes of all ranks, to which rank 0 adds whether a checkpoint is due, and a period."""
        now, (steps_before, before) = time.monotonic(), self._latest
        self._latest = steps, now
        is_due = self._every_s is not None and now - self._stored_at >= self._every_s
        period = (steps - steps_before) * min(PERIOD_S / max(now - before, 1e-9), 2)
        wishes = [stop, is_due, period] if self._channel.rank == 0 else [stop, 0, 0]
        vector = torch.tensor(wishes, dtype=torch.float64, device=self._device)
        return self._channel.start_sum(vector, f"the sum of wishes for a checkpoint at step {steps}")


def check_one_checkpoint(channel: GroupChannel, header: Mapping[str, Any] | None, device: torch.device) -> None:
    """Raise ValueError, in all ranks, unless they resume from the same checkpoint, or none does.

    header: of the checkpoint that this rank has read. Rank 0 may replace it from then on."""
    text = "" if header is None else json.dumps([header["lines"], header["wall_s"]])
    if (other := channel.first_differing(text, device)) is not None:
        rule = "resume must be the same checkpoint on every rank, in a folder that all of them see"
        raise ValueError(f"{rule}, got another on rank {other} than on rank 0")
