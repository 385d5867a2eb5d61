"""The usual suspects: defects of implementations, each of them tried with dsgd's text of the method.

A suspect is named if the algorithm with this defect has the parameters and buffers that were seen, at every gradient of
every problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsgd.certificate.counterpart import ChangeTraining, ChangeWorker, counterpart
from dsgd.certificate.interfaces import Build, mean_over_ranks
from dsgd.worker import Worker


class DefectiveWorker:
    """Hand everything on to a worker, except what a defect changes. All means are one by one, in `all_reduce_mean`."""

    def __init__(self, worker: Worker, module: nn.Module) -> None:
        self._worker, self._module = worker, module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    async def mean_gradient(self) -> Tensor:
        return await self.all_reduce_mean(await self._worker.gradient())

    async def all_reduce_mean(self, v: Tensor, size: float = 1.0) -> Tensor:
        return await self._worker.all_reduce_mean(v, size)


class WrongDivisor(DefectiveWorker):
    """Multiply a mean by the number of workers, to a power."""

    def __init__(self, worker: Worker, module: nn.Module, power: int) -> None:
        super().__init__(worker, module)
        self._power = power

    async def all_reduce_mean(self, v: Tensor, size: float = 1.0) -> Tensor:
        return await self._worker.all_reduce_mean(v, size) * float(self._worker.nodes) ** self._power


class ForgottenState(DefectiveWorker):
    """Reset what is remembered between rounds, at each mean. name: kept vector, None: the local optimizer's state."""

    def __init__(self, worker: Worker, module: nn.Module, name: str | None = None) -> None:
        super().__init__(worker, module)
        self._name = name

    async def all_reduce_mean(self, v: Tensor, size: float = 1.0) -> Tensor:
        mean = await self._worker.all_reduce_mean(v, size)
        if self._name is None:
            self._worker.forget()
        elif self._name in self._worker.kept:
            self._worker.kept[self._name].zero_()
        return mean


class AveragedBuffers(DefectiveWorker):
    """Average buffers with the parameters: the module's, or the local optimizer's."""

    def __init__(self, worker: Worker, module: nn.Module, of_module: bool) -> None:
        super().__init__(worker, module)
        self._of_module = of_module

    async def all_reduce_mean(self, v: Tensor, size: float = 1.0) -> Tensor:
        mean = await self._worker.all_reduce_mean(v, size)
        for buffer in self._module.buffers() if self._of_module else ():
            if buffer.is_floating_point():
                mean_over_ranks(buffer)
        for vector in () if self._of_module else self._worker.remembered:
            vector.copy_(await self._worker.all_reduce_mean(vector.clone()))
        return mean


class LateMean(DefectiveWorker):
    """Return the mean of the communication before; at first the worker's own vector, or zeros."""

    def __init__(self, worker: Worker, module: nn.Module, is_zero: bool) -> None:
        super().__init__(worker, module)
        self._is_zero = is_zero
        self._before: Tensor | None = None

    async def all_reduce_mean(self, v: Tensor, size: float = 1.0) -> Tensor:
        first = torch.zeros_like(v) if self._is_zero else v.clone()
        mean = await self._worker.all_reduce_mean(v, size)
        answer, self._before = first if self._before is None else self._before, mean.clone()
        return answer


class StaleParameters(DefectiveWorker):
    """Send the parameters from before the last local step."""

    def __init__(self, worker: Worker, module: nn.Module) -> None:
        super().__init__(worker, module)
        self._before: Tensor | None = None

    def step(self, g: Tensor) -> None:
        self._before = self._worker.x.clone()
        self._worker.step(g)

    async def all_reduce_mean(self, v: Tensor, size: float = 1.0) -> Tensor:
        if self._before is not None and v.shape == self._before.shape:
            change = self._worker.x - self._before
            v = v - change if torch.equal(v, self._worker.x) else v + change  # x itself, or theta - x
        return await self._worker.all_reduce_mean(v, size)


class StaleTheta(DefectiveWorker):
    """Measure the change of a round from an old theta. is_first: it is the first one, where the outer step begins as
    well; otherwise it is one round old."""

    def __init__(self, worker: Worker, module: nn.Module, is_first: bool) -> None:
        super().__init__(worker, module)
        self._is_first = is_first
        self._old: Tensor | None = None

    async def all_reduce_mean(self, v: Tensor, size: float = 1.0) -> Tensor:
        theta = self._worker.kept.get("theta")
        if theta is None:
            return await self._worker.all_reduce_mean(v, size)
        old = theta if self._old is None else self._old
        mean = await self._worker.all_reduce_mean(v + (old - theta), size)
        self._old = old if self._is_first and self._old is not None else theta.clone()
        if self._is_first:
            theta.copy_(old)
        return mean


class ShiftedSteps(DefectiveWorker):
    """Count more steps than were made, so that rounds end earlier; or fewer, so that the first round is longer.

    after: step from which there are rounds."""

    def __init__(self, worker: Worker, module: nn.Module, by: int, after: int) -> None:
        super().__init__(worker, module)
        self._by, self._after = by, after

    @property
    def steps(self) -> int:
        made = self._worker.steps
        return made + self._by if min(made, made + self._by - 1) >= self._after else made


def decay_before_step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Decay parameters before the step, apart from the gradient."""
    _decay_apart(optimizer, optimizer.register_step_pre_hook)


def decay_after_step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Decay parameters after the step, apart from the gradient."""
    _decay_apart(optimizer, optimizer.register_step_post_hook)


def decay_in_gradient(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Add the decay to the gradient."""
    rates = _taken_decay(optimizer)

    @torch.no_grad()
    def add(*_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            for parameter in group["params"]:
                parameter.grad.add_(parameter, alpha=rate)

    optimizer.register_step_pre_hook(add)


def _decay_apart(optimizer: torch.optim.Optimizer, register: Callable[[Any], Any]) -> None:
    rates = _taken_decay(optimizer)

    @torch.no_grad()
    def decay(*_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            for parameter in group["params"]:
                parameter.mul_(1 - group["lr"] * rate)

    register(decay)


def _taken_decay(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the decay of each group, which becomes zero."""
    rates = [group["weight_decay"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    return rates


def buffers_of_rank_0(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Overwrite buffers with rank 0's before each forward pass, as DistributedDataParallel does by default."""

    def take(*_: Any) -> None:
        for buffer in module.buffers():
            dist.broadcast(buffer, 0)

    module.register_forward_pre_hook(take)


def _worker(cls: Callable[..., DefectiveWorker], **options: Any) -> ChangeWorker:
    return cast(ChangeWorker, partial(cls, **options))


WORKERS: tuple[tuple[str, ChangeWorker], ...] = (
    ("divides twice: a mean is divided by the number of workers once more", _worker(WrongDivisor, power=-1)),
    ("divides never: a mean is a sum", _worker(WrongDivisor, power=1)),
    ("forgets momentum: the local optimizer's state is reset after each average", _worker(ForgottenState)),
    ("forgets momentum: the outer momentum is reset in each round", _worker(ForgottenState, name="v")),
    ("averages buffers: the module's", _worker(AveragedBuffers, of_module=True)),
    ("averages buffers: the local optimizer's", _worker(AveragedBuffers, of_module=False)),
    ("stale snapshot: of the communication before, at first the worker's own", _worker(LateMean, is_zero=False)),
    ("stale snapshot: of the communication before, at first zeros", _worker(LateMean, is_zero=True)),
    ("stale snapshot: of the parameters before the last local step", _worker(StaleParameters)),
    ("stale snapshot: of theta, never refreshed", _worker(StaleTheta, is_first=True)),
    ("stale snapshot: of theta, one round old", _worker(StaleTheta, is_first=False)),
)
TRAININGS: tuple[tuple[str, ChangeTraining], ...] = (
    ("order of decay: apart from the gradient, before the step", decay_before_step),
    ("order of decay: apart from the gradient, after the step", decay_after_step),
    ("order of decay: within the gradient", decay_in_gradient),
    ("averages buffers: takes rank 0's in each forward pass", buffers_of_rank_0),
)
# by algorithm: options that are defects of an implementation
OPTIONS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "diloco": (
        ("forgets momentum: there is no outer momentum", {"beta": 0.0}),
        ("makes no outer step: it averages parameters", {"olr": 1.0, "beta": 0.0}),
    ),
    "compressed": (("forgets momentum: the error memory is lost", {"feedback": False}),),
}


@dataclass(frozen=True)
class Suspect:
    """A defect and the training loop of the method that has it."""

    name: str
    build: Build


def suspects(algo: str, options: Mapping[str, Any]) -> Iterator[Suspect]:
    """Yield the suspects for a method with these options."""
    for name, change in WORKERS:
        yield Suspect(name, counterpart(algo, options, change_worker=change))
    shifts = {"is one step longer": -1, "is one step shorter": 1, "has one step": options.get("tau", 1) - 1}
    for how, by in shifts.items():
        change = _worker(ShiftedSteps, by=by, after=options.get("switch", 0))
        yield Suspect(f"counts steps: the first round {how}", counterpart(algo, options, change_worker=change))
    for name, change in TRAININGS:
        yield Suspect(name, counterpart(algo, options, change_training=change))
    for name, changes in OPTIONS.get(algo, ()):
        yield Suspect(name, counterpart(algo, {**options, **changes}))
