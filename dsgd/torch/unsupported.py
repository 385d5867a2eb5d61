"""Refuse, in one line, models and options that cannot be distributed, and common mistakes in the changed loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dsgd.engines.torch.group_channel import GroupChannel
from dsgd.torch.flat import dense_strides, has_own_numbers, local_part, trained
from dsgd.worker import Algorithm


def check_algorithm_options(options: Mapping[str, Any]) -> None:
    """Raise ValueError for arguments of `distribute` among the options, and for options that process groups do not
    support."""
    for name in ("topology", "steps", "seed"):
        if name in options:
            raise ValueError(f"{name} must be an argument of distribute ({name}={options[name]!r}), got it in options")
    if options.get("elastic"):
        rule = "algo.elastic needs engine=sim or engine=dist: a process group ends when one of its ranks does"
        raise ValueError(f"{rule}, got True")
    if options.get("overlap") == "backward":
        raise ValueError("algo.overlap must not be backward, which the simulator alone times, got 'backward'")


def check_tensors(model: nn.Module) -> None:
    """Raise ValueError for a parameter or buffer that cannot be copied from rank to rank."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.layout != torch.strided:
            raise ValueError(f"{name} must be a dense tensor, got {tensor.layout}: distribute tensor.to_dense()")
        if not has_own_numbers(local_part(tensor)):
            raise ValueError(
                f"{name} must have memory for each of its numbers, got an expanded tensor: use contiguous()"
            )


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, algo: Algorithm, nodes: int) -> None:
    """Raise ValueError for an optimiser that does not fit the model or the algorithm."""
    if any(float(state.get("step", 1)) > 0 for state in optimizer.state.values()):  # Adagrad has some at step 0
        raise ValueError("optimizer must have made no step before distribute: its state is of other parameters")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        rule = "optimizer must make a step without a closure, from one gradient"
        raise ValueError(f"{rule}, got {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError("optimizer must take dense gradients, got SparseAdam: use Adam")
    check_parameters(model, optimizer)
    group = optimizer.param_groups[0]
    if algo.needs_sgd and not isinstance(optimizer, torch.optim.SGD):
        raise ValueError(f"optimizer must be torch.optim.SGD with {algo.needs_sgd}, got {type(optimizer).__name__}")
    algo.check(nodes, float(group["lr"]), float(group.get("momentum", 0.0)))


def check_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError unless the optimiser has exactly the trained parameters of the model."""
    needed = {id(parameter) for parameter in trained(model).values()}
    given = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if (got := len(needed & given)) < len(needed):
        raise ValueError(f"optimizer must have all {len(needed)} trained parameters, got {got}")
    if others := given - {id(parameter) for parameter in model.parameters()}:
        rule = "optimizer must have parameters of the model alone: make those of a loss a part of it"
        raise ValueError(f"{rule}, got {len(others)} others")


def check_ranks_alike(channel: GroupChannel, model: nn.Module, device: torch.device, arguments: object) -> None:
    """Raise ValueError, on every rank, if ranks differ in their models, algorithms or options."""
    parameters = dict(model.named_parameters())
    shapes = [(name, tuple(x.shape), x.dtype, x.requires_grad) for name, x in parameters.items()]
    shapes += [(name, tuple(x.shape), x.dtype) for name, x in model.named_buffers()]
    orders = [(name, _order(local_part(x))) for name, x in parameters.items() if x.requires_grad]
    for name, value in (
        ("the same parameters and buffers", shapes),
        ("parameters with the same strides, or memory format", orders),
        ("the same algorithm and options", arguments),
    ):
        if (other := channel.first_differing(repr(value), device)) is not None:
            raise ValueError(f"every rank must have {name}, got others on rank {other} than on rank 0")


def _order(tensor: Tensor) -> list[int]:
    """Return in which order the numbers of a tensor are sent."""
    return [stride for stride, size in zip(dense_strides(tensor), tensor.shape, strict=True) if size > 1]


def refuse_steps(optimizer: torch.optim.Optimizer, may_step: Callable[[], bool]) -> None:
    """Make the optimiser raise RuntimeError if other code than the distributed model calls its step."""

    def before(*_: Any) -> None:
        if not may_step():
            rule = "optimizer.step() must not be called after distribute: model.step() makes its step"
            raise RuntimeError(f"{rule}, and clears the gradients")

    optimizer.register_step_pre_hook(before)


def refuse_update(scaler: torch.amp.GradScaler) -> None:
    """Make a scaler raise RuntimeError if it is updated twice for one step."""
    if "update" in vars(scaler):
        return
    update = scaler.update

    def checked(new_scale: Any = None) -> None:
        steps = scaler._per_optimizer_states.values()
        if scaler.is_enabled() and new_scale is None and not any(each["found_inf_per_device"] for each in steps):
            raise RuntimeError("scaler.update() must not be called after model.step(scaler), which has made it")
        update(new_scale)

    scaler.update = checked
