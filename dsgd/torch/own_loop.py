"""Distribute a training loop of the user's: the wrapped model, its step, its output model, its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from dsgd.engines.torch.group_channel import GroupChannel
from dsgd.engines.torch.lockstep import LockstepWorker
from dsgd.runner.named_algorithm import named_algorithm
from dsgd.runner.values import prefixed
from dsgd.streams import stream
from dsgd.torch.flat import FlatModule, OverlappedMean, as_vector
from dsgd.torch.placement import check_placement, group_of, local_part
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
    has the groups of localsgd as its rows. Of a model that `fully_shard` has sharded, the ranks with the same shards.

    All ranks begin with the parameters and buffers of rank 0. Raises ValueError, on every rank, for options, a model or
    an optimiser that cannot be distributed, and for a model that differs between the ranks."""
    if not dist.is_initialized():
        rule = "distribute needs a process group: call torch.distributed.init_process_group() first"
        raise ValueError(f"{rule}, and start the script by torchrun or srun")
    check_placement(model, algo, group)
    if isinstance(group, DeviceMesh):
        group, options = group_of(group, algo, options or {})
    channel = GroupChannel(group)
    if isinstance(algo, str):
        algo = named_algorithm(algo, options or {}, topology, channel.nodes, seed)
    elif options or topology:
        raise ValueError(f"options and topology must be those of {type(algo).__name__} itself, where algo is no name")
    with prefixed("algo", fields=algo):
        _check_optimizer(model, optimizer, algo, channel.nodes)
    _check_alike(channel, model, (algo if is_dataclass(algo) else type(algo), steps, seed))
    return DistributedModel(model, optimizer, algo, channel, steps, seed)


class DistributedModel(nn.Module):
    """A module whose parameters an algorithm of dsgd trains; it is called as the module is. Made by `distribute`.

    module: the user's. worker: as the algorithm sees it, with x and the number of steps."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        algo: Algorithm,
        channel: GroupChannel,
        steps: int | None,
        seed: int,
    ) -> None:
        super().__init__()
        self.module, self.optimizer = module, optimizer
        self._channel, self._flat = channel, FlatModule(module)
        with prefixed("algo", fields=algo):
            algo.check_layout(self._flat.layout)
        frozen = [local_part(parameter).detach() for parameter in module.parameters() if not parameter.requires_grad]
        for tensor in (self._flat.x, *frozen, *module.buffers()):
            channel.from_rank(0, tensor, "the broadcast of the initial model")
        self._local = TorchSteps(optimizer, self._flat, steps)
        rng = stream("algorithm", seed, channel.rank)
        self._lockstep = LockstepWorker(algo, self._flat.x, rng, self._flat.layout, channel, self._local)
        self._averages = True  # False: within no_sync
        self._mean = OverlappedMean(
            self._flat,
            BUCKET_BYTES,
            lambda: self._averages and self._asks_for_mean and not self._flat.copied,
            self._start_mean,
        )
        self._shows_output = False
        with torch.no_grad():
            self._lockstep.begin()
            self._flat.write()

    @property
    def worker(self) -> Worker:
        return self._lockstep.worker

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.module(*arguments, **named)

    @property
    def _asks_for_mean(self) -> bool:
        return isinstance(self._lockstep.asked, MeanGradient)

    def _start_mean(self, part: Tensor) -> Callable[[], Tensor]:
        return self._channel.start_mean(part, f"the average of gradients at step {self.worker.steps}")

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
        if scaler is not None and self._flat.copied:
            raise RuntimeError(
                "step() must be without a scaler where parameters are sharded or of several dtypes: use bf16"
            )
        self._flat.check()
        self._flat.gather()
        if self._asks_for_mean and not self._mean.done:
            self._start_mean(self._flat.g)()
        self._mean.done = False
        self._local.unscale(scaler, self._channel if self._lockstep.algo.barrier else None)
        self._lockstep.answer(self._flat.g)
        self._flat.zero()
        self._flat.write()
        if scaler is not None:
            scaler.update()

    @contextmanager
    def output(self) -> Iterator[nn.Module]:
        """Let the module be the algorithm's output model inside of the block, to be evaluated or saved. Every rank
        enters it after the same step.

        Buffers of real numbers, such as the statistics of batch norm, are the mean of the ranks' there, others those of
        rank 0. Outside of it every rank has its own."""
        self._flat.check()
        tensors = [self._flat.x, *self.module.buffers()]
        shown = [self._lockstep.output(), *(self._output_buffer(buffer.clone()) for buffer in tensors[1:])]
        before = [tensor.clone() for tensor in tensors]
        self._show(tensors, shown)
        self._shows_output = True
        try:
            yield self.module
        finally:
            self._shows_output = False
            self._show(tensors, before)

    @torch.no_grad()
    def _show(self, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)
        self._flat.write()

    def _output_buffer(self, buffer: Tensor) -> Tensor:
        name = "the average of buffers of the output model"
        return (
            self._channel.mean(buffer, name) if buffer.is_floating_point() else self._channel.from_rank(0, buffer, name)
        )

    def state_dict(self, *arguments: Any, **named: Any) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return all that decides how this rank goes on: its module, optimiser and algorithm. Every rank stores its
        own. Raises ValueError within a cycle of the algorithm; the module alone is `model.module.state_dict()`."""
        return {
            "module": self.module.state_dict(*arguments, **named),
            "optimizer": self.optimizer.state_dict(),
            "algorithm": self._lockstep.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any], *arguments: Any, **named: Any) -> None:  # pyright: ignore
        """Go on from what `state_dict` has returned on this rank: every rank calls it, before any step."""
        if self.worker.steps:
            rule = "load_state_dict must be called before the first step()"
            raise RuntimeError(f"{rule}, got a model after {self.worker.steps} steps: distribute it again")
        self._lockstep.check_state(state["algorithm"])
        self.module.load_state_dict(state["module"], *arguments, **named)
        with torch.no_grad():
            self._flat.read()
            self._lockstep.restore(state["algorithm"])
            self._flat.write()
        self.optimizer.load_state_dict(state["optimizer"])  # after the algorithm may have let it begin anew


class TorchSteps:
    """Make the local steps of a rank by an optimiser of torch. Implements `dsgd.engines.torch.lockstep.LocalSteps`."""

    def __init__(self, optimizer: torch.optim.Optimizer, flat: FlatModule, steps: int | None) -> None:
        self.optimizer, self.flat, self.steps = optimizer, flat, steps

    def unscale(self, scaler: torch.amp.GradScaler | None, channel: GroupChannel | None) -> None:
        """Unscale the gradients of the step to come. One that is not finite leaves out the step: in all ranks of the
        channel, if there is one, else in this rank."""
        self._overflows = False
        if scaler is None or not scaler.is_enabled():
            return
        try:
            scaler.unscale_(self.optimizer)
        except RuntimeError as error:
            if "already been called" not in str(error):  # by the user, to clip the gradients
                raise
        # The scaler's own flags: clipping by value may have made the gradient finite, and its update reads them.
        for flag in scaler._found_inf_per_device(self.optimizer).values():
            if channel is not None:
                channel.start_sum(flag, "the sum of overflows")()
            self._overflows = self._overflows or bool(flag)
        if self._overflows:
            self.flat.g.zero_()

    def done(self, worker: Worker) -> bool:
        return self.steps is not None and worker.steps >= self.steps

    def learning_rate(self, worker: Worker) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, worker: Worker, g: Tensor) -> None:
        worker.steps += 1
        if self._overflows:
            return
        if g is not self.flat.g:
            self.flat.g.copy_(g)
        with self.flat.lent():
            self.optimizer.step()

    def remembered(self) -> Sequence[Tensor]:
        states = [(parameter.numel(), self.optimizer.state.get(parameter, {})) for parameter in self.flat.parameters]
        return [
            as_vector(local_part(value))
            for size, state in states
            for _, value in sorted(state.items())
            if isinstance(value, Tensor) and value.dim() and value.numel() == size
        ]

    def forget(self) -> None:
        self.optimizer.state.clear()


def _check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, algo: Algorithm, nodes: int) -> None:
    """Raise ValueError for an optimiser that does not fit the model or the algorithm."""
    if optimizer.state:
        raise ValueError("optimizer must have made no step before distribute: its state is of other parameters")
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    given = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if (got := len(trained & given)) < len(trained):
        raise ValueError(f"optimizer must have all {len(trained)} trained parameters, got {got}")
    group = optimizer.param_groups[0]
    if algo.needs_sgd and not isinstance(optimizer, torch.optim.SGD):
        raise ValueError(f"optimizer must be torch.optim.SGD with {algo.needs_sgd}, got {type(optimizer).__name__}")
    algo.check(nodes, float(group["lr"]), float(group.get("momentum", 0.0)))


def _check_alike(channel: GroupChannel, model: nn.Module, arguments: object) -> None:
    """Raise ValueError, on every rank, if ranks differ in the shapes of the model or in what they ask for."""
    shapes = [(name, tuple(x.shape), x.dtype, x.requires_grad) for name, x in model.named_parameters()]
    shapes += [(name, tuple(x.shape), x.dtype) for name, x in model.named_buffers()]
    device = next(model.parameters()).device
    for name, value in (("the same parameters and buffers", shapes), ("the same algorithm and options", arguments)):
        if (other := channel.first_differing(repr(value), device)) is not None:
            raise ValueError(f"every rank must have {name}, got others on rank {other} than on rank 0")
