"""The examples around Trainer of Hugging Face and around PyTorch Lightning, where these packages are installed
(`pip install '.[examples]'`): `sync` has the losses of DistributedDataParallel, `diloco` the parameters of the
simulator. With `trainers` in DSGD_REQUIRE, a missing package is a failure."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.support.own_loops import in_processes, problem_of
from tests.support.required import need
from tests.support.simulate import simulate
from tests.support.simulated import assert_close
from tests.system.test_examples import EXAMPLES, loops, printed

PACKAGES = {"hf_trainer": "transformers", "lightning_strategy": "lightning"}
STEPS, BATCH_SIZE = 12, 4
KEYS = ("algo=diloco", "algo.tau=4", "precision=fp64", f"batch_size={BATCH_SIZE}", "model.hidden=[8]", "nodes=2")
KEYS += ("optimizer.lr=0.1", "optimizer.momentum=0.5", "budget.epochs=null", f"budget.steps={STEPS}")


def need_package(name: str) -> None:
    package = PACKAGES[name]
    need("trainers", None if find_spec(package) else f"needs {package}")


def sgd(module: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(module.parameters(), 0.1, momentum=0.5)


def train_hf(folder: Path) -> None:
    sys.path.insert(0, str(EXAMPLES / "hf_trainer"))
    train: Any = __import__("train")
    problem = problem_of(*KEYS)
    batches = [
        problem.data.batch(rank, step) for step in range(STEPS) for rank in range(2)
    ]  # dealt to the ranks in turn
    inputs, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = problem.module

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": problem.data.loss(self.layers(inputs), labels)}

    model = Model()
    args = train.arguments_of(
        str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH_SIZE,
        train_sampling_strategy="sequential",
        max_grad_norm=0,
        learning_rate=0.1,
    )
    items = [{"inputs": x, "labels": y} for x, y in zip(inputs, labels, strict=True)]
    trainer = train.AlgorithmTrainer(
        model, args, algo="diloco", options={"tau": 4}, train_dataset=items, optimizers=(sgd(model), None)
    )
    trainer.train()
    save(folder, trainer.distributed)


def train_lightning(folder: Path) -> None:
    sys.path.insert(0, str(EXAMPLES / "lightning_strategy"))
    train, lightning = (__import__(name) for name in ("train", "lightning"))
    problem = problem_of(*KEYS)
    batches = [problem.data.batch(dist.get_rank(), step) for step in range(STEPS)]

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = problem.module

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            inputs, labels = batch
            return problem.data.loss(self.layers(inputs), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self)

    inputs, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    strategy = train.AlgorithmStrategy("diloco", {"tau": 4}, process_group_backend="gloo")
    trainer = train.trainer_of(strategy, max_epochs=1, precision="64-true", use_distributed_sampler=False)
    trainer.fit(Module(), DataLoader(TensorDataset(inputs, labels), BATCH_SIZE))
    save(folder, strategy.distributed)


def save(folder: Path, model: Any) -> None:
    with model.output():
        output = model.worker.x.clone()
    np.save(folder / f"{dist.get_rank()}.npy", torch.stack([model.worker.x, output]).numpy())


def launched(folder: Path, name: str) -> None:
    """Call a function in a process as torchrun would have started it."""
    rank = str(dist.get_rank())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    {"hf_trainer": train_hf, "lightning_strategy": train_lightning}[name](folder)


@pytest.mark.parametrize("name", PACKAGES)
def test_diloco_within_a_trainer_is_the_simulators_run(name: str, tmp_path: Path) -> None:
    need_package(name)
    in_processes(tmp_path, "tests.system.test_trainer_examples:launched", name)
    simulated = simulate(*KEYS)
    centre = simulated.simulation.machine.centre()
    assert centre is not None
    for rank, x in enumerate(simulated.x.numpy()):
        assert_close(np.load(tmp_path / f"{rank}.npy"), np.stack([x, centre.numpy()]), 1e-10)


@pytest.mark.parametrize("name", PACKAGES)
def test_sync_within_a_trainer_has_the_losses_of_data_parallel(name: str) -> None:
    need_package(name)
    lines = loops(name)
    assert list(lines) == ["ddp", "sync", "diloco"]
    losses, other = (printed(lines[algo], name) for algo in ("sync", "diloco"))
    assert losses == pytest.approx(printed(lines["ddp"], name), abs=1e-6)
    for path in (losses, other):
        assert path[-2] < 0.3 * path[0]  # the last number is of the test
