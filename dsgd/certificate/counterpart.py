"""dsgd's own text of a method as a training loop, as it is or with one defect.

A defect changes what the algorithm sees of its worker, the local optimizer, or the module. The algorithm's text stays
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from dsgd.certificate.interfaces import Build, TrainingLoop
from dsgd.runner.configuration import named_algorithm
from dsgd.torch import distribute
from dsgd.worker import Algorithm, Worker

ChangeWorker = Callable[[Worker, nn.Module], Worker]
ChangeTraining = Callable[[nn.Module, torch.optim.Optimizer], None]


def counterpart(
    algo: str,
    options: Mapping[str, Any],
    change_worker: ChangeWorker | None = None,
    change_training: ChangeTraining | None = None,
) -> Build:
    """Return a function that builds the training loop of dsgd's algorithm.

    change_worker: returns the worker that the algorithm sees instead. change_training: changes module and optimizer
    before the first step."""

    def loop(module: nn.Module, optimizer: torch.optim.Optimizer, _: object) -> TrainingLoop:
        algorithm = named_algorithm(algo, options, None, dist.get_world_size(), seed=0)
        if change_worker is not None:
            algorithm = _seeing(algorithm, lambda worker, change=change_worker: change(worker, module))
        if change_training is not None:
            change_training(module, optimizer)
        model = distribute(module, optimizer, algorithm)
        return TrainingLoop(model, model.step)

    return loop


def _seeing(algorithm: Algorithm, change: Callable[[Worker], Worker]) -> Algorithm:
    """Return the same algorithm, whose text sees the changed worker."""

    async def train(self: Algorithm, worker: Worker) -> None:
        await cast(Any, cls).train(self, change(worker))

    cls = type(algorithm)
    assert is_dataclass(algorithm)
    values = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    return type(cls.__name__, (cls,), {"train": train})(**values)
