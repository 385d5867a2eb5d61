"""Counterparts with outer steps: NoLoCo of its authors, DiLoCo of EXO Gym."""

from __future__ import annotations

from importlib import import_module

import torch
import torch.distributed as dist

from dsgd.streams import stream

from .training import Steps, Training


def noloco(training: Training) -> Steps:
    """Train by the optimiser of NoLoCo, given the pairs of dsgd and its local optimiser."""
    program, options = import_module("noloco.sparse_optimizer_c"), training.algo
    vars(program)["create_random_permutation"] = lambda nodes, step: pairs(nodes, options.seed, step // options.tau - 1)
    optimizer = program.SparseOptimizerC(
        training.module,
        dist.group.WORLD,
        local_group_size=2,
        number_of_local_steps=options.tau,
        outer_lr=options.olr,
        outer_momentum=options.beta,
    )
    optimizer.local_optimizer = training.optimizer()
    for step in range(training.steps):
        training.backward(training.module, step)
        optimizer.step()
        yield None


def pairs(nodes: int, seed: int, turn: int) -> list[int]:
    """Return the ranks in an order in which theirs makes dsgd's pairs: of each rank with that half a row behind it."""
    order = stream("pairs", seed, turn).permutation(nodes).tolist()
    return order[::2] + order[1::2]


def gym_diloco(training: Training) -> Steps:
    """Train by DiLoCo of EXO Gym. Its first round is one step longer than tau: it begins to count with one. On a CPU
    the worker of rank 0 is left with the memory of the master: every worker is given its own."""
    package, options = import_module("exogym.strategy"), training.algo
    outer = package.OptimSpec(torch.optim.SGD, lr=options.olr, momentum=options.beta, nesterov=True)
    strategy = package.DiLoCoStrategy(outer_optim_spec=outer, H=options.tau)
    strategy._init_node(training.module, training.rank, training.nodes)
    strategy.optim, strategy.local_step = training.optimizer(), 1
    for step in range(training.steps):
        training.backward(training.module, step)
        strategy.step()
        for parameter in training.module.parameters():
            parameter.data = parameter.data.clone()
        yield None
