"""Distribute a training loop of the user's: the wrapped model, its step, its output model, its state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from dsgd.process_groups.channel import GroupChannel
from dsgd.process_groups.lockstep import LockstepWorker
from dsgd.run.values import prefixed
from dsgd.streams import stream
from dsgd.torch.flat import FlatModule, OverlappedMean, as_vector
from dsgd.torch.methods import named_algorithm
from dsgd.torch.placement import check_whole, group_of
from dsgd.worker import Algorithm, MeanGradient, Worker

BUCKET_BYTES = 25 << 20  # of gradients that are averaged at a time, as in DistributedDataParallel


def distribute(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    algo: str | Algorithm = "sync",
    options: Mapping[str, Any] | None = None,
    *,
    topology: str | Mapping[str, Any] | None = None,
    steps: int | None = None,
    seed: int = 0,
    group: dist.ProcessGroup | DeviceMesh | None = None,
) -> DistributedModel:
    """Return the model with a `step()` that trains it by an algorithm of dsgd. Every rank of the group calls this.

    optimizer: the local one, any of torch's, still without state. algo, options: a file of conf/algo and its keys, or
    an algorithm. topology: a file of conf/topology, or its keys with `name`, for algorithms that have a graph; None:
    ring, for relay chain. steps: how many calls of `step()` there will be; None: not known, and the last round of the
    algorithm may stay open. seed: of the algorithm's random numbers. group: None: all ranks; a mesh of two dimensions
    has the groups of localsgd as its rows.

    All ranks begin with the parameters and buffers of rank 0. Raises ValueError, on every rank, for options, a model or
    an optimiser that cannot be distributed, and for a model that differs between the ranks."""
    if not dist.is_initialized():
        rule = "distribute needs a process group: call torch.distributed.init_process_group() first"
        raise ValueError(f"{rule}, and start the script by torchrun or srun")
    check_whole(model)
    if isinstance(group, DeviceMesh):
        group, options = group_of(group, algo, options or {})
    channel = GroupChannel(group)
    name = algo if isinstance(algo, str) else type(algo).__name__
    if isinstance(algo, str):
        algo = named_algorithm(algo, options or {}, topology, channel.nodes, seed)
    elif options or topology:
        raise ValueError(f"options and topology must be those of {name} itself, where algo is no name")
    with prefixed("algo", fields=algo):
        _check_optimizer(model, optimizer, algo, channel.nodes)
    _check_alike(channel, model, repr((name, algo if is_dataclass(algo) else "", steps, seed)))
    return DistributedModel(model, optimizer, algo, name, channel, steps, seed)


class DistributedModel(nn.Module):
    """A module whose parameters an algorithm of dsgd trains; it is called as the module is. Made by `distribute`.

    module: the user's. worker: as the algorithm sees it, with x and the number of steps."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        algo: Algorithm,
        name: str,
        channel: GroupChannel,
        steps: int | None,
        seed: int,
    ) -> None:
        super().__init__()
        self.module, self.optimizer, self.algo_name = module, optimizer, name
        self._channel, self._flat = channel, FlatModule(module)
        with prefixed("algo", fields=algo):
            algo.check_layout(self._flat.layout)
        for tensor in (self._flat.x, *self._flat.frozen(), *self._flat.buffers()):
            channel.from_rank(0, tensor, "the broadcast of the initial model")
        self._local = TorchSteps(optimizer, self._flat, steps)
        rng = stream("algorithm", seed, channel.rank)
        self._lockstep = LockstepWorker(algo, self._flat.x, rng, self._flat.layout, channel, self._local)
        self._averages = True  # False: within no_sync
        self._mean = OverlappedMean(self._flat, BUCKET_BYTES, channel.nodes, self._start_sum)
        self._mean.wanted = lambda: self._averages and isinstance(self._lockstep.asked, MeanGradient)
        self._shows_output = self._has_stepped = False
        with torch.no_grad():
            self._lockstep.begin()

    @property
    def worker(self) -> Worker:
        return self._lockstep.worker

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.module(*arguments, **named)

    def _start_sum(self, part: Tensor) -> Any:
        return self._channel.start_sum(part, f"the average of gradients at step {self.worker.steps}")

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients: for all backward passes of a step but the last. Needed where gradients are averaged
        during the backward pass (sync, localsgd before its switch), allowed everywhere."""
        self._averages = False
        try:
            yield
        finally:
            self._averages = True

    @torch.no_grad()
    def step(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """Give the gradients to the algorithm: it makes a step by the optimiser, sends what it has to send, and waits
        for what it needs before the next gradient. The gradients are zero afterwards.

        scaler: of a loss that was scaled. The gradients are unscaled, unless `scaler.unscale_` was called already; a
        step whose gradients are not finite is left out, on all ranks where the algorithm keeps them equal."""
        if self._shows_output:
            raise RuntimeError("step() must be called outside of model.output()")
        if self._lockstep.asked is None:
            raise RuntimeError(f"step() must be called at most {self._local.steps} times (steps), got one more call")
        self._flat.check()
        self._flat.gather()
        self._has_stepped = True
        if isinstance(self._lockstep.asked, MeanGradient) and not self._mean.done:
            self._channel.mean(self._flat.g, f"the average of gradients at step {self.worker.steps}")
        self._mean.done = False
        self._local.begin(scaler, self._any_rank if self._lockstep.algo.barrier else bool)
        self._lockstep.answer(self._flat.g)
        self._flat.g.zero_()
        self._local.end()

    def _any_rank(self, overflow: bool) -> bool:
        """Tell whether the gradient of any rank is not finite."""
        name = f"the sum of overflows at step {self.worker.steps}"
        return bool(self._channel.mean(self._flat.x.new_tensor(float(overflow)), name) > 0)

    @contextmanager
    def output(self) -> Iterator[nn.Module]:
        """Let the module be the algorithm's output model inside of the block, to be evaluated or saved. Every rank
        enters it after the same step.

        Buffers of real numbers, such as the statistics of batch norm, are the mean of the ranks' there, others those of
        rank 0. Outside of it every rank has its own."""
        self._flat.check()
        tensors = [self._flat.x, *self._flat.buffers()]
        with torch.no_grad():
            shown = [self._lockstep.output(), *(self._output_buffer(buffer) for buffer in tensors[1:])]
            before = [tensor.clone() for tensor in tensors]
            _overwrite(tensors, shown)
        self._shows_output = True
        try:
            yield self.module
        finally:
            self._shows_output = False
            with torch.no_grad():
                _overwrite(tensors, before)

    def _output_buffer(self, buffer: Tensor) -> Tensor:
        name = "the average of buffers of the output model"
        if buffer.is_floating_point():
            return self._channel.mean(buffer.clone(), name)
        return self._channel.from_rank(0, buffer.clone(), name)

    def state_dict(self, *arguments: Any, **named: Any) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return all that decides how this rank goes on: its module, optimiser and algorithm. Every rank stores its
        own. Raises ValueError within a cycle of the algorithm; the module alone is `model.module.state_dict()`."""
        algorithm = self._lockstep.state() | {"algo": self.algo_name}
        return {
            "module": self.module.state_dict(*arguments, **named),
            "optimizer": self.optimizer.state_dict(),
            "algorithm": algorithm,
        }

    def load_state_dict(self, state: Mapping[str, Any], *arguments: Any, **named: Any) -> None:  # pyright: ignore
        """Go on from what `state_dict` has returned on this rank: every rank calls it, before any step."""
        if self._has_stepped:
            rule = "load_state_dict must be called before the first step()"
            raise RuntimeError(f"{rule}, got a model after {self.worker.steps} steps: distribute it again")
        stored = state["algorithm"]
        here = {"algo": self.algo_name, "rank": self.worker.rank, "nodes": self.worker.nodes}
        if wrong := [key for key in here if stored[key] != here[key]]:
            rule = ", ".join(f"{key}={here[key]}" for key in wrong)
            raise ValueError(f"state_dict must be of {rule}, got {', '.join(f'{key}={stored[key]}' for key in wrong)}")
        self.module.load_state_dict(state["module"], *arguments, **named)
        with torch.no_grad():
            self._lockstep.restore(stored)
        self.optimizer.load_state_dict(state["optimizer"])  # after the algorithm may have let it begin anew


class TorchSteps:
    """The local steps of a rank by an optimiser of torch. Implements `dsgd.process_groups.lockstep.LocalSteps`."""

    def __init__(self, optimizer: torch.optim.Optimizer, flat: FlatModule, steps: int | None) -> None:
        self.optimizer, self.flat, self.steps = optimizer, flat, steps
        self._scaler: torch.amp.GradScaler | None = None
        self._is_left_out = False

    def begin(self, scaler: torch.amp.GradScaler | None, any_rank: Callable[[bool], bool]) -> None:
        """Unscale the gradients of the step to come. any_rank: tells of an overflow here whether there is one
        anywhere that counts."""
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._is_left_out = False
        if self._scaler is None:
            return
        try:
            self._scaler.unscale_(self.optimizer)
        except RuntimeError as error:
            if "already been called" not in str(error):  # by the user, to clip the gradients
                raise
        # The scaler's own finding, as clipping by value may have made the gradient finite.
        flags = self._scaler._found_inf_per_device(self.optimizer).values()
        self._is_left_out = any_rank(any(bool(flag) for flag in flags))
        if self._is_left_out:
            self.flat.g.zero_()

    def end(self) -> None:
        """Update the scaler. It lowers its scale if the step was left out, whichever rank overflowed."""
        if self._scaler is None:
            return
        before = self._scaler.state_dict()
        self._scaler.update()
        if self._is_left_out:
            lower = before["scale"] * before["backoff_factor"]
            self._scaler.load_state_dict(before | {"scale": lower, "_growth_tracker": 0})

    def done(self, worker: Worker) -> bool:
        return self.steps is not None and worker.steps >= self.steps

    def learning_rate(self, worker: Worker) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, worker: Worker, g: Tensor) -> None:
        worker.steps += 1
        if self._is_left_out:
            return
        if g is not self.flat.g:
            self.flat.g.copy_(g)
        if self._scaler is None:
            self.optimizer.step()
        else:
            self._scaler.step(self.optimizer)

    def remembered(self) -> Sequence[Tensor]:
        states = [self.optimizer.state.get(parameter, {}) for parameter in self.flat.parameters]
        sizes = self.flat.sizes
        return [
            as_vector(state[name])
            for state, size in zip(states, sizes, strict=True)
            for name in sorted(state)
            if isinstance(state[name], Tensor) and state[name].numel() == size and state[name].dim()
        ]

    def forget(self) -> None:
        self.optimizer.state.clear()


def _check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, algo: Algorithm, nodes: int) -> None:
    """Raise ValueError for an optimiser that does not fit the model or the algorithm."""
    if optimizer.state:
        raise ValueError("optimizer must have made no step before distribute: its state is of other parameters")
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    given = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if missing := trained - given:
        raise ValueError(
            f"optimizer must have all {len(trained)} trained parameters, got {len(trained) - len(missing)}"
        )
    group = optimizer.param_groups[0]
    if algo.needs_sgd and not isinstance(optimizer, torch.optim.SGD):
        raise ValueError(f"optimizer must be torch.optim.SGD with {algo.needs_sgd}, got {type(optimizer).__name__}")
    algo.check(nodes, float(group["lr"]), float(group.get("momentum", 0.0)))


def _check_alike(channel: GroupChannel, model: nn.Module, arguments: str) -> None:
    """Raise ValueError, on every rank, if ranks differ in the shapes of the model or in what they ask for."""
    shapes = repr([(name, tuple(x.shape), x.dtype, x.requires_grad) for name, x in model.named_parameters()])
    shapes += repr([(name, tuple(x.shape), x.dtype) for name, x in model.named_buffers()])
    device = next(model.parameters()).device
    digests = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) for text in (shapes, arguments)]
    ranks = channel.gathered(torch.tensor(digests, device=device), "the comparison of models")
    for name, column in (("the same parameters and buffers", 0), ("the same algorithm and options", 1)):
        differing = [rank for rank, other in enumerate(ranks) if other[column] != ranks[0][column]]
        if differing:
            raise ValueError(f"every rank must have {name}, got others on rank {differing[0]} than on rank 0")


def _overwrite(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
