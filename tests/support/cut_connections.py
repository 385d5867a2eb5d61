"""Algorithms of which one worker's connection for snapshots breaks, while its process and all else goes on.

`algo._target_=tests.support.cut_connections.Gossip`, with `algo.once` as the path of a file that is made when it
happens, so that it happens to one process only.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dsgd.algorithms import gossip, sync
from dsgd.worker import Worker

RANK, STEPS = 1, 20  # who loses it, and after how many steps


def cut_snapshots(client: Any) -> None:
    """Shut down the connection to the coordinator that is not the one for control."""
    control = client._line.socket
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as other:
            is_control = os.path.sameopenfile(other.fileno(), control.fileno())
            if not is_control and other.getpeername() == control.getpeername():
                other.shutdown(socket.SHUT_RDWR)


class CutOffWorker:
    """A worker as its algorithm sees it, whose connection breaks after a step."""

    def __init__(self, worker: Worker, once: Path) -> None:
        self._worker = worker
        self._once = once

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def step(self, g: Tensor) -> None:
        self._worker.step(g)
        if self._worker.rank == RANK and self._worker.steps == STEPS and not self._once.exists():
            self._once.touch()
            cut_snapshots(self._worker._engine.client)  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class CutOff:
    """once: the path of a file that says that it has happened."""

    once: str = ""

    async def train(self, worker: Worker) -> None:
        watched: Any = CutOffWorker(worker, Path(self.once))
        await super().train(watched)  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class Sync(CutOff, sync.Sync):
    pass


@dataclass(frozen=True)
class Gossip(CutOff, gossip.Gossip):
    pass


def cut_off(algo: str, once: Path) -> tuple[str, ...]:
    """Options of a command line that put such a fault into an algorithm of this name."""
    return (f"algo={algo}", f"algo._target_={__name__}.{algo.capitalize()}", f"+algo.once='{once}'")
