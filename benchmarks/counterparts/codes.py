"""Counterparts that compress: the reducers of Vogels et al. 2019, CHOCO-SGD of Koloskova et al. 2020.

Both compress layer by layer, dsgd the whole vector: they are given the model as one vector."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from dsgd.streams import stream

from .training import Counterpart, Steps, Training


def reducer(name: str) -> Counterpart:
    """Return error feedback around one of their reducers."""
    return partial(reduce, name=name)


def reduce(training: Training, name: str) -> Steps:
    """Train with a reducer, given the places that dsgd draws. Its constructor, which draws a gigabyte of random numbers
    first, is left out."""
    send_signs_as_numbers()
    program, optimizer = import_module("gradient_reducers"), training.optimizer()
    theirs = getattr(program, name).__new__(getattr(program, name))
    theirs.rank, theirs.n_workers, theirs.device, theirs.timer = training.rank, training.nodes, "cpu", no_timer
    theirs.rng = SimpleNamespace(choice=lambda d, k, replace: places(training, d, k))
    d = training.problem.dimension
    values = 1 if name == "UniformRandomSparseReducer" else 2  # those of topk and their places
    theirs.compression = values * (sent(training) + 0.5) / d
    memory, mean = torch.zeros(d), torch.zeros(d)
    for step in range(training.steps):
        training.backward(training.module, step)
        a = gradient(training) + memory
        theirs.reduce([a], [mean], [memory])
        parameters = list(training.module.parameters())
        for parameter, part in zip(parameters, mean.split([each.numel() for each in parameters]), strict=True):
            parameter.grad = part.view_as(parameter).clone()
        optimizer.step()
        yield None


def choco(operation: str) -> Counterpart:
    """Return CHOCO-SGD with one of their compressors."""
    return partial(choco_sgd, operation=operation)


def choco_sgd(training: Training, operation: str) -> Steps:
    """Train by their optimiser, whose step ends with sending: a step without a gradient comes first, as dsgd sends at
    the beginning of a step. Its signs are in single precision: they are given the precision of the model. It uses
    streams of CUDA: they do nothing here."""
    send_signs_as_numbers()
    signs = import_module("pcode.utils.sparsification").SignCompressor
    single = signs.unpacking
    signs.unpacking = lambda *arguments: single(*arguments).double()
    torch.cuda.current_stream = lambda device=None: None  # pyright: ignore
    vars(import_module("torch.optim.optimizer"))["required"] = object()  # which torch had once
    options, group = training.algo, training.optimizer().param_groups[0]
    d = training.problem.dimension
    x = nn.Parameter(training.vector())
    graph = SimpleNamespace(
        rank=training.rank,
        ranks=list(range(training.nodes)),
        n_nodes=training.nodes,
        get_neighborhood=lambda: dict(options.topology.mixing_row(training.rank)),
    )
    conf = SimpleNamespace(
        graph=graph,
        consensus_stepsize=options.gamma,
        comm_op=operation,
        comm_device="unpinned",
        compress_ratio=1 - (sent(training) + 0.5) / d,
        quantize_level=32,
        is_biased=True,
        backend="gloo",
        use_ipc=False,
        epoch_=0,
    )
    optimizer = import_module("pcode.optim.parallel_choco_v").ParallelCHOCO_V(
        [{"params": [x], "name": "x", "param_size": x.shape, "nelement": d}],
        lr=group["lr"],
        momentum=group["momentum"],
        conf=conf,
    )
    for step in range(-1, training.steps):
        if step < 0:
            x.grad = torch.zeros_like(x)
        else:
            training.backward(training.module, step)
            x.grad = gradient(training)
        optimizer.step(timer=no_timer)
        vector_to_parameters(x.detach().clone(), training.module.parameters())
        if step >= 0:
            yield None
    dist.barrier()


def gradient(training: Training) -> Tensor:
    return torch.cat([part.grad.flatten() for part in training.module.parameters() if part.grad is not None])


def sent(training: Training) -> int:
    """Return how many entries dsgd sends."""
    return max(1, round(training.algo.share * training.problem.dimension))


def places(training: Training, d: int, k: int) -> np.ndarray:
    """Return the places of dsgd's step, of which the points of the gradients keep count."""
    return stream("places", training.algo.seed, len(training.points) - 1).choice(d, k, replace=False)


def no_timer(*_: Any, **__: Any) -> AbstractContextManager[None]:
    return nullcontext()


def send_signs_as_numbers() -> None:
    """Stand in for their extension bit2byte, which is not in their repositories: 0 for +1, 2 for -1."""
    module: Any = ModuleType("bit2byte")
    module.packing = lambda signs: 1 - signs.flatten()
    module.unpacking = lambda packed, like: packed.view_as(like)
    sys.modules["bit2byte"] = module
