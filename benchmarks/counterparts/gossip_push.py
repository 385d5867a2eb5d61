"""Counterparts of Assran et al. 2019: SGP and its overlapped form, in processes without a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .training import Steps, Training


def push(training: Training) -> Steps:
    """Train by their wrapper, which sends in a thread of its own, and mixes as it is called with the next batch.

    It uses streams of CUDA and pinned memory even where it communicates on the CPU: both do nothing here."""
    without_gpu()
    overlap, optimizer = training.algo.overlap > 0, training.optimizer()
    model = import_module("gossip").GossipDataParallel(
        training.module, device_ids=[0], push_sum=True, overlap=overlap, comm_device=torch.device("cpu")
    )
    model.scatter = lambda inputs, named, devices: ((inputs,), (named,))
    for step in range(training.steps):
        training.backward(model, step)
        optimizer.step()
        if not overlap:
            model.transfer_params()
        yield None
    model.sync_comms()  # the others wait for what this one sends


def without_gpu() -> None:
    def unchanged(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        return tensor

    def nothing(*_: Any) -> None:
        return None

    stream: Any = SimpleNamespace(synchronize=nothing, wait_stream=nothing)
    torch.cuda.current_stream = lambda device=None: stream
    torch.cuda.stream = lambda stream: nullcontext()  # pyright: ignore
    Tensor.cuda = Tensor.pin_memory = unchanged  # pyright: ignore
