"""Exact reductions: settings in which a method is plain SGD, written here without any method.

They hold for local SGD and for outer optimizers. For a class with a counterpart, those are checked that dsgd's own
algorithm has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dsgd.certificate.interfaces import Build, TrainingLoop, mean_over_ranks
from dsgd.certificate.small_problems import PROBLEMS, SmallProblem, network, sgd


def all_reduce_sgd(module: nn.Module, optimizer: torch.optim.Optimizer, _: object) -> TrainingLoop:
    """Build SGD with the mean of all workers' gradients; with one worker, SGD."""

    def step() -> None:
        for parameter in module.parameters():
            assert parameter.grad is not None
            mean_over_ranks(parameter.grad)
        optimizer.step()

    return TrainingLoop(module, step)


def unchanged(module: nn.Module, optimizer: torch.optim.Optimizer, _: object) -> TrainingLoop:
    """Build a loop that changes no parameter."""
    return TrainingLoop(module, lambda: None)


@dataclass(frozen=True)
class Reduction:
    """A problem with changed options, and the plain loop that a method then equals.

    changes: options that are changed if the class has them. needs: option without which there is no such setting."""

    title: str
    problem: SmallProblem
    plain: Build
    changes: Mapping[str, Any]
    needs: str | None = None

    def options(self, options: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the changed options; None without the needed one."""
        if self.needs is not None and self.needs not in options:
            return None
        return {name: self.changes.get(name, value) for name, value in options.items()}


ONE = replace(PROBLEMS[2], nodes=1)
FROZEN = SmallProblem("network, 2 workers, SGD at rate 0", 2, network, sgd(0.0, 0.9, 0.1))
PLAIN = SmallProblem("network, 3 workers, SGD", 3, network, sgd(0.1))
REDUCTIONS = (
    Reduction("tau=1 equals all-reduce", PLAIN, all_reduce_sgd, {"tau": 1, "olr": 1.0, "beta": 0.0}, needs="tau"),
    Reduction("one worker equals SGD", ONE, all_reduce_sgd, {"olr": 1.0, "beta": 0.0}),
    Reduction("steps at rate 0 change nothing", FROZEN, unchanged, {}),
)
