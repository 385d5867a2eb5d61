"""The task of benchmarks/simulators.py, for programs that know nothing of dsgd: model, batches, the loss to print."""

from __future__ import annotations

import json
import os

import numpy as np
import torch
from torch import Tensor, nn

TAU, LR = 20, 0.1
torch.set_num_threads(1)
ROUNDS = int(os.environ["ROUNDS"])
TASK = {name: torch.from_numpy(array) for name, array in np.load(os.environ["TASK"]).items()}
WORKERS = len(TASK["inputs"])


def network() -> nn.Sequential:
    """Return the network at the start."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    with torch.no_grad():
        for parameter, name in zip(model.parameters(), ("w1", "b1", "w2", "b2"), strict=True):
            parameter.copy_(TASK[name])
    return model


def batches(worker: int, number: int) -> tuple[Tensor, Tensor]:
    """Return the inputs [TAU, batch, 64] and labels [TAU, batch] of a worker in a round."""
    steps = slice(number * TAU, (number + 1) * TAU)
    return TASK["inputs"][worker, steps], TASK["labels"][worker, steps]


def make_steps(model: nn.Module, worker: int, number: int) -> None:
    """Make the steps of a worker in a round."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for inputs, labels in zip(*batches(worker, number), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def print_loss(model: nn.Module) -> None:
    """Print the test loss of the mean model."""
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(TASK["test_inputs"]), TASK["test_labels"])
    print(json.dumps({"loss": float(loss)}))
