"""The algorithms as they are, under observation: `algo._target_=tests.support.watched_algorithms.Sync`.

An algorithm gets a `WatchedWorker`, which writes down what the worker ends with, or a `TurnTakingWorker`, which
makes free-running workers take turns in a given order, so that a race becomes a schedule.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsgd.algorithms import adpsgd
from dsgd.engines.rules.task import Join, Task
from dsgd.worker import Worker

PATIENCE_S = 60.0  # for a turn that does not come; a guard
POLL_S = 0.0005


def save(path: Path, array: np.ndarray) -> None:
    """In one step: whoever reads it finds all of it."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        np.save(file, array)
    os.replace(partial, path)


class WatchedWorker:
    """A worker as its algorithm sees it, and after its every step a file `worker <rank>.npy` of [3, d]: x, the sum of
    what the steps have added to it, the sum of what was handed to servers.

    steps: after how many this worker is done, whatever the others do; None: as the engine says.
    """

    def __init__(self, worker: Worker, folder: Path, steps: int | None) -> None:
        self._worker = worker
        self._path = folder / f"worker {worker.rank}.npy"
        self._steps = steps
        self._moved, self._handed = torch.zeros_like(worker.x), torch.zeros_like(worker.x)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    @property
    def done(self) -> bool:
        done = self._worker.done  # always asked: the engine may take a checkpoint meanwhile
        return done if self._steps is None else self._worker.steps >= self._steps

    def step(self, g: Tensor) -> None:
        before = self._worker.x.clone()
        self._worker.step(g)
        self._moved.add_(self._worker.x - before)
        self.save()

    def save(self) -> None:
        save(self._path, torch.stack([self._worker.x, self._moved, self._handed]).numpy())

    async def call(self, operation: str, v: Tensor | None = None, *scalars: float, size: float = 1.0) -> Any:
        if v is not None and size == 1:
            self._handed.add_(v)
        return await self._worker.call(operation, v, *scalars, size=size)


class RecordingWorker(WatchedWorker):
    """A worker that leaves the points of all its gradients so far in `points <rank>.npy`, [steps, d]."""

    def __init__(self, worker: Worker, folder: Path) -> None:
        super().__init__(worker, folder, None)
        self._points: list[Tensor] = []

    async def gradient(self, at: Tensor | None = None) -> Tensor:
        self._points.append((self._worker.x if at is None else at).clone())
        return await self._worker.gradient(at)

    async def mean_gradient(self) -> Tensor:
        self._points.append(self._worker.x.clone())
        return await self._worker.mean_gradient()

    def save(self) -> None:
        super().save()
        save(self._path.with_name(f"points {self._worker.rank}.npy"), torch.stack(self._points).numpy())


class AlreadySent:
    """What `start` returns: the vector is sent before anybody waits for it."""

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield


class TurnTakingWorker(WatchedWorker):
    """A worker that goes on from a gradient only when it is its turn, up to its next one; what it has pushed in between
    has arrived before the next turn begins. The workers take `turns` in this order, after a first one of each by rank,
    which begins when all wait for their first gradient.

    That is what a simulation does on a network without any delay, where no two gradients end at the same moment: what
    is pushed arrives after the pusher has looked into its own inbox, and before anybody else goes on.
    """

    def __init__(self, worker: Worker, folder: Path, turns: list[int]) -> None:
        super().__init__(worker, folder, None)
        self._order = [*range(worker.nodes), *turns]
        self._taken, self._waiting = folder / "taken", folder / "waiting"
        self._to_send: list[Coroutine[Any, Any, Any]] = []
        self._next = 0  # turns that have been taken when the next one of this worker begins

    @property
    def done(self) -> bool:
        return self._next == len(self._order) - 1 and self._worker.steps > 0

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> AlreadySent:
        self._to_send.append(coroutine)
        return AlreadySent()

    async def gradient(self, at: Tensor | None = None) -> Tensor:
        at = self._worker.x.clone() if at is None else at
        if self._worker.steps == 0:
            _append(self._waiting)
            await Join(Reached(self._worker, self._waiting, self._worker.nodes))
            await Join(Reached(self._worker, self._taken, self._worker.rank))
            self._next = self._worker.rank
        while self._to_send:
            await self._to_send.pop(0)
        self.save()
        mine = self._worker.rank
        following = [i for i in range(self._next + 1, len(self._order)) if self._order[i] == mine]
        _append(self._taken)
        if not following:
            await Join(NEVER)
        self._next = following[0]
        g = await self._worker.gradient(at)
        await Join(Reached(self._worker, self._taken, self._next))
        return g


class Never:
    """What a task can wait for until the run is over."""

    def __init__(self) -> None:
        self._waiting: list[Any] = []


NEVER: Any = Never()


class Reached(Task[None]):
    """What a task can wait for until a file has a size, while its worker answers what others ask."""

    def __init__(self, worker: Worker, path: Path, size: int) -> None:
        self._waiting = ()
        events = worker._engine.events  # pyright: ignore[reportAttributeAccessIssue]

        def wait() -> None:
            try:
                _until(path, size)
            finally:
                events.put((self._go_on, ()))

        threading.Thread(target=wait, daemon=True).start()

    def _go_on(self) -> None:
        for task in self._waiting:
            task.resume()


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b".")


def _until(path: Path, size: int) -> None:
    """Wait until the file has this size."""
    deadline = time.monotonic() + PATIENCE_S
    while (path.stat().st_size if path.exists() else 0) < size:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} never had {size} entries")
        time.sleep(POLL_S)


class WatchedServer:
    """A shard of a server that leaves what it holds, after its every operation, in a file with its process's name."""

    def __init__(self, server: Any, folder: Path) -> None:
        self._server = server
        self._path = folder / f"{Path('/proc/self/comm').read_text().strip()}.npy"
        for name, value in vars(server).items():  # the engine hands in, and puts back, its vectors
            if isinstance(value, Tensor):
                setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep it, or hand on what the engine says of the model and of a call."""
        if name in ("layout", "staleness"):
            setattr(self._server, name, value)
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._server, name)

        def operate(*arguments: Any) -> Any:
            answer = method(*arguments)
            save(self._path, self._server.x.numpy())
            return answer

        return operate


@dataclass(frozen=True)
class Observed:
    """folder: for the files. own: every worker is done after so many steps. turns: in which workers go on from their
    gradients, as JSON. apart: the workers start at unit vectors, that of their rank, rather than together. points: the
    points of all gradients are written down."""

    folder: str = ""
    own: int | None = None
    turns: str | None = None
    apart: bool = False
    points: bool = False

    async def train(self, worker: Worker) -> None:
        if self.apart:
            worker.x.zero_()
            worker.x[worker.rank] = 1.0
        folder = Path(self.folder)
        turns = None if self.turns is None else json.loads(self.turns)
        watched: Any = (
            WatchedWorker(worker, folder, self.own) if turns is None else TurnTakingWorker(worker, folder, turns)
        )
        if self.points:
            watched = RecordingWorker(worker, folder)
        if self.apart:  # nobody may see where another one would have started
            watched.publish()
            _append(folder / "apart")
            _until(folder / "apart", worker.nodes)
        await super().train(watched)  # pyright: ignore[reportAttributeAccessIssue]
        watched.save()

    def server(self, x: Tensor) -> Any:
        return WatchedServer(super().server(x), Path(self.folder))  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class ADPSGD(Observed, adpsgd.ADPSGD):
    def answer(self, worker: Worker, v: Tensor) -> Tensor:
        """Answer, and write down x, which may change so after the end."""
        y = super().answer(worker, v)
        path = Path(self.folder) / f"worker {worker.rank}.npy"
        if path.exists():
            written = np.load(path)
            written[0] = worker.x.numpy()
            save(path, written)
        return y


OF_PACKAGE = (
    "asyncdiloco.AsyncDiLoCo", "choco.CHOCO", "compressed.Compressed", "corrected.Corrected", "decoupled.Decoupled",
    "delayfree.DelayFree", "diloco.DiLoCo", "downpour.Downpour", "dpsgd.DPSGD", "easgd.EASGD", "gasloc.GASLoC",
    "gossip.Gossip", "localsgd.LocalSGD", "noloco.NoLoCo", "relay.Relay", "sgp.SGP", "sparta.SPARTA",
    "streaming.Streaming", "sync.Sync",
)  # fmt: skip
CLASSES: dict[str, type] = {"adpsgd": ADPSGD}
for module, _, name in (text.partition(".") for text in OF_PACKAGE):
    algorithm = getattr(import_module(f"dsgd.algorithms.{module}"), name)
    CLASSES[module] = dataclass(frozen=True)(type(name, (Observed, algorithm), {"__module__": __name__}))
    globals()[name] = CLASSES[module]  # where `algo._target_` looks for it


def observed(algo: str, folder: Path) -> tuple[str, ...]:
    """Options of a command line that put an algorithm of this name under observation."""
    folder.mkdir(parents=True, exist_ok=True)
    return (f"algo={algo}", f"algo._target_={__name__}.{CLASSES[algo].__name__}", f"+algo.folder='{folder}'")


def seen(folder: Path, name: str, count: int) -> np.ndarray:
    """What workers (name `worker`: [count, 3, d]) or servers ([d]) left."""
    arrays = [np.load(folder / f"{name} {index}.npy") for index in range(count)]
    return np.stack(arrays) if name == "worker" else np.concatenate(arrays)
