"""A module of PyTorch Lightning, and the strategy by which an algorithm of dsgd trains it.

torchrun --nproc-per-node=2 train.py --algo diloco --options '{"tau": 8}'
torchrun --nproc-per-node=2 train.py --algo ddp       # DistributedDataParallel, which `sync` equals
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import dsgd.torch

BATCH_SIZE = 16


class AlgorithmStrategy(DDPStrategy):
    """Train by an algorithm of dsgd, where DDPStrategy wraps the module in DistributedDataParallel."""

    def __init__(self, algo: str, options: dict[str, Any], **named: Any) -> None:
        super().__init__(**named)
        self.algo, self.options = algo, options

    def configure_ddp(self) -> None:
        """Leave the module as it is."""

    def setup(self, trainer: lightning.Trainer) -> None:
        super().setup(trainer)  # moves the module and makes its optimiser
        if trainer.state.fn == TrainerFn.FITTING:
            (local,) = self.optimizers
            self.distributed = dsgd.torch.distribute(self.lightning_module, local, self.algo, self.options)
            self.optimizers = [dsgd.torch.AlgorithmOptimizer(self.distributed)]

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Accumulate gradients."""
        with self.distributed.no_sync():
            yield


class Quadrants(lightning.LightningModule):
    """A network that tells in which quadrant a point is."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        points, labels = batch
        loss = nn.functional.cross_entropy(self.layers(points), labels)
        self.losses.append(float(self.trainer.strategy.reduce(loss.detach().clone(), reduce_op="mean")))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def load(count: int, seed: int) -> TensorDataset:
    """Return points in a square with the quadrant that they are in."""
    points = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return TensorDataset(points, (points[:, 0] > 0).long() + 2 * (points[:, 1] > 0).long())


def trainer_of(strategy: DDPStrategy, **named: Any) -> lightning.Trainer:
    """Return a trainer for the processes that torchrun has started."""
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet["enable_checkpointing"] = False  # of rank 0 alone: model.state_dict() of every rank has everything
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    return lightning.Trainer(accelerator="cpu", devices=devices, strategy=strategy, **quiet | named)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", default="sync")
    parser.add_argument("--options", type=json.loads, default={})
    arguments = parser.parse_args()
    torch.manual_seed(0)
    module = Quadrants()
    if arguments.algo == "ddp":
        strategy = DDPStrategy(process_group_backend="gloo")
    else:
        strategy = AlgorithmStrategy(arguments.algo, arguments.options, process_group_backend="gloo")
    trainer = trainer_of(strategy, max_epochs=3)
    trainer.fit(module, DataLoader(load(1024, seed=0), BATCH_SIZE))
    shown = strategy.distributed.output() if isinstance(strategy, AlgorithmStrategy) else nullcontext()
    points, labels = load(512, seed=1).tensors
    with shown, torch.no_grad():  # on every rank
        correct = (module.layers(points).argmax(dim=1) == labels).double().mean()
    if trainer.is_global_zero:
        for loss in module.losses:
            print(f"loss {loss:.9f}")
        print(f"accuracy {correct:.3f}")
    dist.destroy_process_group()  # which Lightning leaves to the end of the process, where gloo's threads may abort it


if __name__ == "__main__":
    main()
