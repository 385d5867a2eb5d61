"""Distribute a training loop of the user's: the wrapped model, its step, its output model, its state."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import is_dataclass
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from dsgd.engines.torch.group_channel import GroupChannel
from dsgd.engines.torch.lockstep import AT_X, LockstepWorker
from dsgd.runner.configuration import named_algorithm
from dsgd.runner.values import key_prefix
from dsgd.streams import stream
from dsgd.torch.flat import FlatModule, as_vector, check_placement, group_of, local_part, trained
from dsgd.torch.overlapped_mean import OverlappedMean
from dsgd.torch.unsupported import (
    check_algorithm_options,
    check_optimizer,
    check_parameters,
    check_ranks_alike,
    check_tensors,
    refuse_steps,
    refuse_update,
)
from dsgd.worker import Algorithm, Engine, MeanGradient, Worker

BUCKET_BYTES = 25 << 20  # size of a bucket of gradients, as in DistributedDataParallel
OURS = "dsgd.algorithms."  # which change x by torch's operations alone
AVERAGED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # averaged buffers; others: rank 0's


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

    optimizer: the local optimizer, any of torch's, still without state. algo, options: a file of conf/algo and its
    keys, or an algorithm. topology: a file of conf/topology, or its keys with `name`, for algorithms that have a graph;
    None: ring, for relay chain. steps: number of calls of `step()`; None: not known, and the last round of the
    algorithm may stay open. seed: seed of the algorithm's random numbers. group: the ranks, None: all; the rows of a
    mesh of two dimensions are the groups of localsgd. For a model that `fully_shard` has sharded, pass the ranks with
    the same shards.

    All ranks begin with the parameters and buffers of rank 0. Raises ValueError, on every rank, for options, a model or
    an optimiser that cannot be distributed, and for a model that differs between the ranks."""
    if not dist.is_initialized():
        rule = "distribute needs a process group: call torch.distributed.init_process_group() first"
        raise ValueError(f"{rule}, and start the script by torchrun or srun")
    check_placement(model, algo, group)
    check_algorithm_options(options or {})
    if isinstance(group, DeviceMesh):
        group, options = group_of(group, algo, options or {})
    channel = GroupChannel(group)
    if isinstance(algo, str):
        algo = named_algorithm(algo, options or {}, topology, channel.nodes, seed)
    elif options or topology:
        raise ValueError(f"options and topology must be those of {type(algo).__name__} itself, where algo is no name")
    check_algorithm_options({"elastic": algo.elastic, "overlap": "backward" if algo.hides_sums else None})
    check_tensors(model)
    flat = FlatModule(model, trusts_versions=type(algo).__module__.startswith(OURS))
    with key_prefix("algo", fields=algo):
        check_optimizer(model, optimizer, algo, channel.nodes)
        algo.check_layout(flat.layout)
    check_ranks_alike(channel, model, flat.device, (algo if is_dataclass(algo) else type(algo), steps, seed))
    return DistributedModel(flat, optimizer, algo, channel, steps, seed)


class DistributedModel(nn.Module):
    """A module whose parameters an algorithm of dsgd trains; it is called as the module is. Made by `distribute`.

    module: the user's module. worker: the algorithm's `Worker`, with the number of steps and a copy of the parameters
    as x."""

    def __init__(
        self,
        flat: FlatModule,
        optimizer: torch.optim.Optimizer,
        algo: Algorithm,
        channel: GroupChannel,
        steps: int | None,
        seed: int,
    ) -> None:
        super().__init__()
        self.module, self.optimizer = flat.module, optimizer
        self._channel, self._flat = channel, flat
        self._local = TorchSteps(optimizer, flat, channel, steps)
        rng = stream("algorithm", seed, channel.rank)
        self._lockstep = LockstepWorker(
            algo, lambda engine: ModuleWorker(flat, channel, rng, engine), channel, self._local
        )
        self._averages = True  # False: within no_sync
        self._mean = OverlappedMean(flat, channel, BUCKET_BYTES, self._takes_part, lambda: self.worker.steps)
        self._shows_output = self._has_warned = False
        steps_of = weakref.ref(self._local)
        refuse_steps(optimizer, lambda: (local := steps_of()) is None or local.is_stepping)
        frozen = [local_part(each).detach() for each in self.module.parameters() if not each.requires_grad]
        flat.assign(channel.from_rank(0, flat.copied(), "the broadcast of the initial model"))
        for tensor in (*frozen, *self.module.buffers()):
            self._take_first(tensor)

    @torch.no_grad()
    def _take_first(self, tensor: Tensor) -> None:
        """Overwrite a tensor of any dtype and strides with rank 0's."""
        numbers = tensor.resolve_conj().contiguous().flatten().view(torch.uint8)
        if numbers.numel():
            self._channel.from_rank(0, numbers, "the broadcast of the initial model")
            tensor.copy_(numbers.view(tensor.dtype).view(tensor.shape))

    @property
    def worker(self) -> Worker:
        return self._lockstep.worker

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a distributed model cannot be copied or pickled: take model.module, or model.state_dict()")

    def forward(self, *arguments: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return self.module(*arguments, **named)
        if not self._flat.is_sharded:
            self._follow()
        if self.training and not self._lockstep.is_begun:
            self._begin()  # it may change x, which must not happen during the backward pass
        outputs = self.module(*arguments, **named)
        self._mean.watch(outputs)
        return outputs

    def _follow(self) -> None:
        """Follow changes of the set of trained parameters. Raises ValueError if it may not change."""
        new, gone = self._flat.changes()
        check_parameters(self.module, self.optimizer)
        if not new and not (gone and self._flat.is_seen):
            return  # a parameter that is frozen under `sync` gets no gradient and stays unchanged
        if self._flat.is_seen:
            algo = type(self._lockstep.algo).__name__
            rule = f"what is trained must stay the same with {algo}, after its first step"
            raise ValueError(f"{rule}, got {', '.join(new + gone)}: distribute again, with a new optimizer")
        if self._mean.done:
            rule = "what is trained must change before the forward pass of the distributed model"
            raise ValueError(f"{rule}, got {', '.join(new)} after it")
        before = {id(parameter) for parameter in self._flat.parameters}
        self._flat.take()
        self._lockstep.worker.layout = self._flat.layout
        check_ranks_alike(self._channel, self.module, self._flat.device, None)
        self._mean.arrange()
        for parameter in trained(self.module).values():
            if id(parameter) not in before:
                self._take_first(local_part(parameter).detach())

    def _takes_part(self) -> bool:
        """Return, during a backward pass, whether its gradients are averaged."""
        return self._averages and self._asks_for_mean and not self._flat.is_sharded

    @property
    def _asks_for_mean(self) -> bool:
        """Return whether the algorithm waits for a mean gradient."""
        if not self._lockstep.is_begun:
            self._begin()
        return isinstance(self._lockstep.asked, MeanGradient)

    @torch.no_grad()
    def _begin(self) -> None:
        """Begin the algorithm, when the loop first calls the model to train it."""
        with self._flat.lent():
            self._lockstep.begin()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients: use it for all backward passes of a step except the last. Needed if gradients are
        averaged during the backward pass (sync, localsgd before its switch), allowed for all algorithms."""
        self._averages = False
        try:
            yield
        finally:
            self._averages = True

    @torch.no_grad()
    def step(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """Give the gradients to the algorithm, which makes a step by the optimiser, communicates, and waits for the
        messages that its next gradient needs. The gradients are zero afterwards.

        scaler: scaler of the loss. The gradients are unscaled, unless `scaler.unscale_` was called already. A step with
        gradients that are not finite is skipped, on all ranks if the algorithm keeps them equal."""
        self._refuse_output("step()")
        if scaler is not None and self._flat.is_sharded:
            raise RuntimeError("step() must be without a scaler where parameters are sharded: use bf16")
        self._follow()
        asks_for_mean = self._asks_for_mean
        if self._lockstep.asked is None:
            raise RuntimeError(f"step() must be called at most {self._local.steps} times (steps), got one more call")
        if asks_for_mean and not self._mean.done:
            self._mean.finish(is_late=not self._flat.is_sharded)
        has_gradient = any(parameter.grad is not None for parameter in self._flat.parameters)
        if not has_gradient and not self._has_warned:
            self._has_warned = True
            who = "any rank" if asks_for_mean else f"rank {self._channel.rank}"
            warnings.warn(f"step() without a gradient on {who}: call backward() before it", stacklevel=2)
        self._mean.done = False
        self._local.unscale(scaler, self._lockstep.algo.barrier)
        g = self._flat.collected()
        if asks_for_mean:
            self._mean.agree()
        if self._local.overflows:
            g.zero_()
        with self._flat.lent():
            self._lockstep.answer(g)
        self.optimizer.zero_grad()
        if scaler is not None:
            if scaler.is_enabled():
                scaler.update()
            refuse_update(scaler)

    def _refuse_output(self, call: str) -> None:
        if self._shows_output:
            raise RuntimeError(f"{call} must be called outside of model.output(), which has another model")

    @contextmanager
    def output(self) -> Iterator[nn.Module]:
        """Let the module be the algorithm's output model inside of the block, to be evaluated or saved. Every rank
        enters it after the same step.

        In the block, buffers of real numbers, such as statistics of batch norm, are the mean over the ranks; other
        buffers are rank 0's. Outside of it every rank has its own."""
        self._refuse_output("output()")
        self._follow()
        registered = [
            (module, name, buffer)
            for module in self.module.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        buffers = [buffer for _, _, buffer in registered]
        x, values = self._flat.copied(), [buffer.clone() for buffer in buffers]
        self._show(self._lockstep.output(), buffers, [self._output_buffer(value) for value in values])
        self._shows_output = True
        try:
            yield self.module
        finally:
            self._shows_output = False
            self._show(x, buffers, values)
            for module, name, buffer in registered:
                module._buffers[name] = buffer  # which an evaluation may have replaced

    @torch.no_grad()
    def _show(self, x: Tensor, buffers: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        self._flat.assign(x)
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)

    def _output_buffer(self, buffer: Tensor) -> Tensor:
        name, numbers = (
            "the average of buffers of the output model",
            buffer.clone(memory_format=torch.contiguous_format),
        )
        if buffer.dtype in AVERAGED:
            return self._channel.mean(numbers, name)
        self._take_first(numbers)
        return numbers

    def state_dict(self, *arguments: Any, **named: Any) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the state from which this rank resumes: module, optimiser and algorithm. Every rank stores its own.
        Raises ValueError within a cycle of the algorithm; the module alone is `model.module.state_dict()`."""
        self._refuse_output("state_dict()")
        return {
            "module": self.module.state_dict(*arguments, **named),
            "optimizer": self.optimizer.state_dict(),
            "algorithm": self._lockstep.state() | {"x": self._flat.left},
        }

    def load_state_dict(self, state: Mapping[str, Any], *arguments: Any, **named: Any) -> None:  # pyright: ignore
        """Resume from a `state_dict` of this rank. Every rank calls it, before any step."""
        if self.worker.steps:
            rule = "load_state_dict must be called before the first step()"
            raise RuntimeError(f"{rule}, got a model after {self.worker.steps} steps: distribute it again")
        self._lockstep.check_state(state["algorithm"])
        self.module.load_state_dict(state["module"], *arguments, **named)
        with torch.no_grad(), self._flat.lent():
            if (x := state["algorithm"].get("x")) is not None:
                self._flat.x.copy_(x)  # as the algorithm has seen it last
            self._lockstep.restore(state["algorithm"], self._flat.device)
            self._flat.read()  # the trained parameters, which restarting the algorithm may have changed
        self.optimizer.load_state_dict(state["optimizer"])  # last, because the algorithm may have reset it


class ModuleWorker(Worker):
    """A worker whose x is made when its algorithm first asks for it."""

    __slots__ = ("_flat",)

    def __init__(self, flat: FlatModule, channel: GroupChannel, rng: np.random.Generator, engine: Engine) -> None:
        self._flat = flat
        super().__init__(channel.rank, channel.nodes, AT_X, rng, engine, flat.layout)

    @property
    def x(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._flat.x

    @x.setter
    def x(self, value: Tensor) -> None:
        """Do nothing: x is a copy of the module's parameters."""

    async def mean_gradient(self) -> Tensor:
        return await MeanGradient(AT_X)


class TorchSteps:
    """Make the local steps of a rank by an optimiser of torch. Implements `dsgd.engines.torch.lockstep.LocalSteps`.

    is_stepping: the optimiser makes a step of the algorithm. overflows: this step is skipped."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, flat: FlatModule, channel: GroupChannel, steps: int | None
    ) -> None:
        self.optimizer, self.flat, self.channel, self.steps = optimizer, flat, channel, steps
        self.is_stepping = self.overflows = False
        self._state_at_first = {parameter: deepcopy(state) for parameter, state in optimizer.state.items()}

    def unscale(self, scaler: torch.amp.GradScaler | None, together: bool) -> None:
        """Unscale the gradients of the next step. If one is not finite, the step is skipped: in all ranks together, or
        in this one."""
        self.overflows = False
        if scaler is None or not scaler.is_enabled():
            return
        try:
            scaler.unscale_(self.optimizer)
        except RuntimeError as error:
            if "already been called" not in str(error):  # by the user, to clip the gradients
                raise
        # The scaler's own flags: clipping by value may have made the gradient finite, and its update reads them.
        flags = scaler._per_optimizer_states[id(self.optimizer)]["found_inf_per_device"]
        if not flags:  # without a gradient
            flags[self.flat.device] = torch.zeros(1, device=self.flat.device)
        for flag in flags.values():
            if together:
                self.channel.start_sum(flag, "the sum of overflows")()
            self.overflows = self.overflows or bool(flag)

    def done(self, worker: Worker) -> bool:
        return self.steps is not None and worker.steps >= self.steps

    def learning_rate(self, worker: Worker) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, worker: Worker, g: Tensor) -> None:
        worker.steps += 1
        if self.overflows:
            return
        self.flat.write()
        self.flat.give(g)
        self.is_stepping = True
        try:
            self.optimizer.step()
        finally:
            self.is_stepping = False
        self.flat.read()

    def remembered(self) -> Sequence[Tensor]:
        """Return the vectors of each parameter. Raises ValueError, on every rank, if ranks differ in the parameters
        with vectors."""
        states = [(parameter.numel(), self.optimizer.state.get(parameter, {})) for parameter in self.flat.parameters]
        vectors = [
            [(key, value) for key, value in sorted(state.items()) if isinstance(value, Tensor) and _is_of(value, size)]
            for size, state in states
        ]
        names = [[key for key, _ in each] for each in vectors]
        if (other := self.channel.first_differing(repr(names), self.flat.device)) is not None:
            rule = "every rank must have had a gradient for the same parameters where momentum is averaged"
            raise ValueError(f"{rule}, got others on rank {other} than on rank 0")
        return [as_vector(local_part(value)) for each in vectors for _, value in each]

    def forget(self) -> None:
        self.optimizer.state.clear()
        self.optimizer.state.update({parameter: deepcopy(state) for parameter, state in self._state_at_first.items()})


def _is_of(value: Tensor, size: int) -> bool:
    """Return whether a tensor of the optimiser's state has as many numbers as the parameter."""
    return value.dim() > 0 and value.numel() == size
