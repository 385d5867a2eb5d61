"""The three interfaces of a class that is certified, and the training loop that each of them becomes.

    hook     C(**options);  c(bucket) -> Future[Tensor], the hook of a DistributedDataParallel
    outer    C(parameters, **options);  c.step() makes the outer step. The loop makes `tau` local steps, averages the
             workers' changes, puts the start of the round into the parameters and the mean change into their gradients
    wrapper  C(model, optimizer, **options);  c.step() after each backward pass, makes the local step and communicates.
             c.model, if there is one, is called in place of the model

The class says which: `interface = "hook"`. Its `algo` and `options` name dsgd's method, as in `dsgd.torch.distribute`;
without `algo` only exact reductions are checked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from dsgd.models import imported_attribute
from dsgd.runner.configuration import named_algorithm

POSITIONAL = {"hook": (), "outer": ("parameters",), "wrapper": ("model", "optimizer")}


@dataclass(frozen=True)
class TrainingLoop:
    """A model that is called for a loss, and the function that is called after its backward pass."""

    model: nn.Module
    step: Callable[[], object]


# builds a training loop from a module, its local optimizer and the loss of a first batch
Build = Callable[[nn.Module, torch.optim.Optimizer, Callable[[nn.Module], Tensor]], TrainingLoop]


@dataclass(frozen=True)
class ForeignClass:
    """A class to certify. path: package.module:Class. algo: name of dsgd's method, None without a counterpart."""

    path: str
    cls: Callable[..., Any]
    interface: str
    algo: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, options: Mapping[str, Any]) -> Build:
        """Return a function that builds the training loop of the class with these options."""

        def loop(
            module: nn.Module, optimizer: torch.optim.Optimizer, first_loss: Callable[[nn.Module], Tensor]
        ) -> TrainingLoop:
            if self.interface == "hook":
                return TrainingLoop(with_hook(module, self.cls(**options), first_loss), optimizer.step)
            if self.interface == "outer":
                outer = self.cls(list(module.parameters()), **options)
                return TrainingLoop(module, OuterRounds(module.parameters(), optimizer, outer, options["tau"]).step)
            wrapper = self.cls(module, optimizer, **options)
            return TrainingLoop(getattr(wrapper, "model", module), wrapper.step)

        return loop


def with_hook(module: nn.Module, hook: Any, first_loss: Callable[[nn.Module], Tensor]) -> DistributedDataParallel:
    """Return a model whose gradients a communication hook averages. Every rank keeps its own buffers.

    After its first pass, DistributedDataParallel puts the parameters in another order. This pass is made here, without
    the hook, so that a hook with a memory finds the same order in every step."""
    model = DistributedDataParallel(module, broadcast_buffers=False)
    is_first = True

    def average(state, bucket):  # without annotations, of which torch takes no strings
        return allreduce_hook(None, bucket) if is_first else state(bucket)  # pyright: ignore[reportArgumentType]

    model.register_comm_hook(hook, average)
    buffers = [buffer.clone() for buffer in module.buffers()]
    first_loss(model).backward()
    is_first = False
    module.zero_grad()
    for buffer, value in zip(module.buffers(), buffers, strict=True):
        buffer.copy_(value)
    return model


class OuterRounds:
    """Make local steps, and after each round of `tau` steps an outer step on the parameters from the round's start."""

    def __init__(self, parameters: Iterable[nn.Parameter], local: torch.optim.Optimizer, outer: Any, tau: int) -> None:
        self.parameters, self.local, self.outer, self.tau = list(parameters), local, outer, tau
        self.starts = [parameter.detach().clone() for parameter in self.parameters]
        self.made = 0

    def step(self) -> None:
        """Make a local step, and an outer step if the round ends."""
        self.local.step()
        self.made += 1
        if self.made % self.tau:
            return
        for parameter, start in zip(self.parameters, self.starts, strict=True):
            parameter.grad = mean_over_ranks(start - parameter.detach())
            parameter.detach().copy_(start)
        self.outer.step()
        self.starts = [parameter.detach().clone() for parameter in self.parameters]


def mean_over_ranks(vector: Tensor) -> Tensor:
    """Average a tensor over all ranks, in place."""
    dist.all_reduce(vector)
    return vector.div_(dist.get_world_size())


def foreign_class(path: str) -> ForeignClass:
    """Import the class at `package.module:Class`. Raises ValueError, one line, if it does not have an interface."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ValueError(f"the class must be package.module:Class, got {path!r}")
    cls = imported_attribute(module, name, f"{path} must be importable")
    if not isinstance(cls, type):
        raise ValueError(f"{path} must be a class, got {type(cls).__name__}")
    interface, algo, options = (getattr(cls, key, None) for key in ("interface", "algo", "options"))
    if interface not in POSITIONAL:
        raise ValueError(f"{path}.interface must be {', '.join(POSITIONAL)}, got {interface!r}")
    if not isinstance(algo, str | None) or not isinstance(options, Mapping | None):
        raise ValueError(f"{path} must have a name as algo and a mapping as options, got {algo!r} and {options!r}")
    options = dict(options or {})
    if algo is not None:
        named_algorithm(algo, options, None, nodes=2, seed=0)  # raises for a wrong name or option
    method = "__call__" if interface == "hook" else "step"
    if not any(method in vars(base) for base in cls.__mro__):
        raise ValueError(f"{path} must have the method {method}, as its interface is {interface}")
    if interface == "outer" and not (isinstance(tau := options.get("tau"), int) and tau >= 1):
        raise ValueError(f"{path}.options must have tau >= 1, the local steps of a round, got {options.get('tau')}")
    try:
        inspect.signature(cls).bind(*POSITIONAL[interface], **options)
    except TypeError as error:
        taken = ", ".join([*POSITIONAL[interface], *options])
        raise ValueError(f"{path} must be made from ({taken}): {error}") from error
    return ForeignClass(path, cls, interface, algo, options)
