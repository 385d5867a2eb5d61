"""Counterparts of Vogels et al. 2021: gossip, push-sum, RelaySum, D2, gradient tracking, quasi-global momentum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from .training import Counterpart, Steps, Training

DEFAULTS: dict[str, Any] = {
    "seed": 0,
    "batch_size": 1,  # of their data sets, which are not used
    "base_optimizer": "SGD",
    "num_lr_warmup_epochs": 0,
    "lr_schedule_milestones": [],
    "overlap_communication": False,
    "simulated_dropped_message_probability": 0,
    "push_sum_avg_steps": 1,
}


def relaysgd(algorithm: str, topology: str, **options: Any) -> Counterpart:
    """Return one of their algorithms on one of their graphs."""
    chosen = DEFAULTS | {"algorithm": algorithm, "topology": topology} | options
    return partial(train, chosen=chosen)


def train(training: Training, chosen: dict[str, Any]) -> Steps:
    """Train by their program.

    D2 is given (I + W) / 2, the matrix of dsgd's. RelaySum is given the worker's own model for those that cannot have
    come yet, where it takes the initial one. Their SGD calls torch as it was in 2021, and has Nesterov's momentum: it
    is given a step of today, with heavy ball."""
    group = training.optimizer().param_groups[0]
    momentum = getattr(training.algo, "beta", group["momentum"])  # of quasi-global momentum, or of the optimiser
    if chosen["algorithm"] == "d2":
        graph = import_module("topologies").Topology
        graph.gossip_matrix = averaged_with_identity(graph.gossip_matrix)
    relay = import_module("utils.communication").RelayMechanism
    relay.receive_average = with_own_model(relay.receive_average)
    vars(import_module("torch.optim._functional"))["sgd"] = partial(heavy_ball, momentum=momentum)
    config = chosen | {
        "momentum": momentum,
        "learning_rate": group["lr"],
        "distributed_world_size": training.nodes,
    }
    steps = import_module("algorithms").train(config, Task(training), Timer())
    next(steps)  # the initial parameters
    for _, (_, _, parameters, _) in zip(range(training.steps), steps, strict=False):
        place(training, parameters)
        yield None


class Task:
    """Model and data, as their programs call them."""

    mean_num_data_per_worker = 0

    def __init__(self, training: Training) -> None:
        self._training, self.data = training, self

    def initialize(self, seed: int) -> tuple[list[Tensor], list[Tensor]]:
        return [parameter.detach().clone() for parameter in self._training.module.parameters()], []

    def iterator(self, **_: Any) -> Iterator[tuple[int, int]]:
        """Yield epochs and batches. Their programs yield before a step: one more is begun, and not made."""
        yield from ((step, step) for step in range(self._training.steps + 1))

    def loss_and_gradient(
        self, parameters: list[Tensor], state: list[Tensor], batch: int
    ) -> tuple[float, list[Tensor], list[Tensor]]:
        place(self._training, parameters)
        module = self._training.module
        self._training.backward(module, batch)
        return 0.0, [part.grad.clone() for part in module.parameters() if part.grad is not None], state


class Timer:
    """Their clock, which measures nothing here."""

    epoch = 0

    def __call__(self, label: str) -> AbstractContextManager[None]:
        return nullcontext()


def place(training: Training, parameters: Sequence[Tensor]) -> None:
    """Overwrite the parameters of the module."""
    with torch.no_grad():
        vector_to_parameters(parameters_to_vector(parameters), training.module.parameters())


def averaged_with_identity(matrix: Any) -> Any:
    return lambda graph: (torch.eye(graph.num_workers) + matrix(graph)) / 2


def with_own_model(receive_average: Any) -> Any:
    def received(relay: Any) -> Tensor:
        relay._initial_state = relay._last_sent_tensor
        return receive_average(relay)

    return received


def heavy_ball(
    parameters: list[Tensor], gradients: list[Tensor], buffers: list[Tensor], lr: float, momentum: float, **_: Any
) -> None:
    for parameter, gradient, buffer in zip(parameters, gradients, buffers, strict=True):
        parameter.sub_(buffer.mul_(momentum).add_(gradient), alpha=lr)
