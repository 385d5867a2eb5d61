"""What a training loop of torch may do around `dsgd.torch.distribute`, and what it must not, in two gloo processes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dsgd.torch
from dsgd.torch import own_loop
from tests.support.own_loops import in_processes

STEPS = 6


def network() -> nn.Sequential:
    """A network with batch norm, a kernel in channels_last, and a frozen layer."""
    torch.manual_seed(dist.get_rank())  # ranks begin with different values
    layers = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))
    layers[0].to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    frozen = nn.Linear(5, 3).requires_grad_(False)
    return layers.append(frozen)


def batch(step: int, part: int = 0) -> tuple[Tensor, Tensor]:
    """The batch of this rank."""
    source = torch.Generator().manual_seed(100 * step + 10 * part + dist.get_rank())
    return torch.randn(8, 2, 4, 4, generator=source), torch.randint(3, (8,), generator=source)


def loss_of(model: nn.Module, step: int, part: int = 0) -> Tensor:
    inputs, labels = batch(step, part)
    return nn.functional.cross_entropy(model(inputs), labels)


def sgd(module: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(module.parameters(), lr, momentum=0.9)


def all_checks(folder: Path, _: None) -> None:
    for check in (
        sync_is_data_parallel,
        accumulated_gradients_are_averaged_once,
        overflow_leaves_out_the_step_of_all_or_of_one,
        an_exception_in_a_backward_pass_spoils_no_later_one,
        an_optimizer_for_trainers_makes_the_steps_of_the_model,
        the_output_model_has_mean_buffers,
        parameters_without_gradients_keep_their_values,
        a_mesh_has_the_group_and_the_groups_of_localsgd,
        bad_input_ends_in_one_line,
        fewer_steps_of_a_rank_are_an_error_within_the_timeout_of_the_group,
        a_dead_rank_is_an_error_that_names_the_operation,
    ):
        check()


def sync_is_data_parallel() -> None:
    """Under AMP with a scaler, clipping, AdamW and a schedule, with zero_grad or without: the same losses."""
    module = network()
    theirs = DistributedDataParallel(deepcopy(module))
    ours_optimizer = torch.optim.AdamW(module.parameters(), 0.01)
    their_optimizer = torch.optim.AdamW(theirs.parameters(), 0.01)
    ours = dsgd.torch.distribute(module, ours_optimizer)
    schedules = [torch.optim.lr_scheduler.StepLR(of, 2, 0.5) for of in (ours_optimizer, their_optimizer)]
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2) for _ in range(2)]
    for step in range(STEPS):
        ours_optimizer.zero_grad(set_to_none=step % 2 == 0)
        their_optimizer.zero_grad()
        losses = []
        for model, optimizer, scaler in zip((ours, theirs), (ours_optimizer, their_optimizer), scalers, strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, step)
            losses.append(loss.item())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_([of for of in model.parameters() if of.requires_grad], 0.5)
        ours.step(scalers[0])
        scalers[1].step(their_optimizer)
        scalers[1].update()
        for schedule in schedules:
            schedule.step()
        assert abs(losses[0] - losses[1]) <= 1e-6
    assert scalers[0].get_scale() == scalers[1].get_scale() == 8.0 * 2 ** (STEPS // 2)
    assert schedules[0].get_last_lr() == schedules[1].get_last_lr()


def accumulated_gradients_are_averaged_once() -> None:
    """Of two batches a step, as DistributedDataParallel does under no_sync; without it the second pass is an error."""
    module = network()
    theirs = DistributedDataParallel(deepcopy(module))
    optimizer, ours = sgd(theirs), dsgd.torch.distribute(module, sgd(module))
    for step in range(STEPS):
        for model in (ours, theirs):
            with model.no_sync():
                loss_of(model, step).backward()
            loss_of(model, step, part=1).backward()
        optimizer.step()
        optimizer.zero_grad()
        ours.step()
    assert abs(loss_of(ours, STEPS).item() - loss_of(theirs, STEPS).item()) <= 1e-6
    loss_of(ours, 0).backward()
    with pytest.raises(RuntimeError, match="no_sync"):
        loss_of(ours, 0).backward()


def overflow_leaves_out_the_step_of_all_or_of_one() -> None:
    """Rank 1 has a gradient that is not finite. Where all ranks keep the same x, none makes the step, and all scalers
    stay equal: also where the loop unscales and clips by value itself, which makes the gradient finite."""
    for unscales, (algo, options, left_out) in itertools.product(
        (False, True),
        (
            ("sync", {}, (True, True)),
            ("sync", {"overlap": False}, (True, True)),
            ("compressed", {"code": "topk"}, (True, True)),
            ("delayfree", {}, (False, True)),
        ),
    ):
        module = network()
        optimizer = sgd(module)
        model = dsgd.torch.distribute(module, optimizer, algo, options)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        for step in range(4):
            before = model.worker.x.clone()
            overflows = step == 1 and dist.get_rank() == 1
            scaler.scale(loss_of(model, step) * (math.inf if overflows else 1)).backward()
            if unscales:
                scaler.unscale_(optimizer)
                for parameter in module.parameters():
                    if parameter.grad is not None:
                        parameter.grad.nan_to_num_(0).clamp_(-1, 1)
            model.step(scaler)
            assert torch.equal(before, model.worker.x) == (step == 1 and left_out[dist.get_rank()])
        assert model.worker.steps == 4
        assert model.worker.x.isfinite().all()
        assert scaler.get_scale() == (8.0 if left_out[dist.get_rank()] else 32.0)  # 8 / 2 * 2, 8 * 2 * 2
        if all(left_out):
            xs = [torch.empty_like(model.worker.x) for _ in range(2)]
            dist.all_gather(xs, model.worker.x)
            assert torch.equal(*xs)


def an_exception_in_a_backward_pass_spoils_no_later_one() -> None:
    """It ends a pass of which some buckets are on their way. After zero_grad the same batch is taken once more."""
    module = network()
    theirs = DistributedDataParallel(deepcopy(module))
    our_optimizer, their_optimizer = sgd(module), sgd(theirs)
    with patch.object(own_loop, "BUCKET_BYTES", 64):
        ours = dsgd.torch.distribute(module, our_optimizer)

    def fail(*_: Any) -> None:
        raise ValueError("of the user's")

    for step in range(3):
        if step == 1:
            hook = module[2].register_full_backward_hook(fail)
            with pytest.raises(ValueError, match="of the user's"):
                loss_of(ours, step).backward()
            hook.remove()
            our_optimizer.zero_grad()
        losses = [loss_of(model, step) for model in (ours, theirs)]
        for loss in losses:
            loss.backward()
        ours.step()
        their_optimizer.step()
        their_optimizer.zero_grad()
        assert abs(losses[0].item() - losses[1].item()) <= 1e-6


def an_optimizer_for_trainers_makes_the_steps_of_the_model() -> None:
    """Schedulers change the rate of the local optimiser, also after a state was loaded, as accelerate does at once."""
    ended = []
    for is_trainer in (False, True):
        module = network()
        local = sgd(module)
        model = dsgd.torch.distribute(module, local, "diloco", {"tau": 2})
        optimizer = dsgd.torch.AlgorithmOptimizer(model) if is_trainer else local
        optimizer.load_state_dict(optimizer.state_dict())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        loss = math.nan
        for step in range(3):

            def closure(step: int = step, model: nn.Module = model) -> float:
                loss = loss_of(model, step)
                loss.backward()
                return float(loss)

            if is_trainer:
                optimizer.zero_grad()
                loss = optimizer.step(closure)
            else:
                loss = closure()
                model.step()
            schedule.step()
        ended.append((loss, local.param_groups[0]["lr"], model.worker.x))
    assert ended[0][:2] == ended[1][:2]
    assert ended[0][1] == 0.1 * 0.5**3
    assert torch.equal(ended[0][2], ended[1][2])


def the_output_model_has_mean_buffers() -> None:
    """Inside of output() x and the statistics of batch norm are means over the ranks; afterwards each has its own."""
    module = network()
    model = dsgd.torch.distribute(module, sgd(module), "localsgd", {"tau": 4})
    for step in range(3):
        loss_of(model, step).backward()
        model.step()
    own = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with model.output() as shown:
        assert shown is module
        for name, tensor in module.state_dict().items():
            ranks = [torch.empty_like(tensor) for _ in range(2)]
            dist.all_gather(ranks, own[name].contiguous())
            expected = (ranks[0] + ranks[1]) / 2 if tensor.is_floating_point() else ranks[0]
            assert torch.allclose(tensor, expected, rtol=1e-6), name
        with pytest.raises(RuntimeError, match="outside of"):
            model.step()
    assert all(torch.equal(tensor, own[name]) for name, tensor in module.state_dict().items())


def parameters_without_gradients_keep_their_values() -> None:
    """A layer that is not called, under sync: its gradient counts as zero; the frozen layer is no part of x."""
    module = network()
    unused = nn.Linear(2, 2)
    module.register_module("unused", unused)
    seen = nn.Sequential(*list(module)[:-1])
    model = dsgd.torch.distribute(module, sgd(module))
    before = unused.weight.detach().clone()
    frozen = sum(of.numel() for of in module.parameters() if not of.requires_grad)
    assert model.worker.x.numel() == sum(of.numel() for of in module.parameters()) - frozen
    loss_of(seen, 0).backward()
    model.step()
    assert torch.equal(unused.weight, before)


def bad_input_ends_in_one_line() -> None:
    rank = dist.get_rank()

    def distributed(*arguments: Any, **named: Any) -> dsgd.torch.DistributedModel:
        module = network()
        return dsgd.torch.distribute(module, sgd(module), *arguments, **named)

    def refused(message: str, call: Callable[[], Any]) -> None:
        with pytest.raises((ValueError, RuntimeError), match=message) as error:
            call()
        assert "\n" not in str(error.value)

    refused("^algo must be one of adpsgd, .*got 'dilocco'; did you mean diloco.$", lambda: distributed("dilocco"))
    refused("^algo.tau must be >= 1, got 0$", lambda: distributed("diloco", {"tau": 0}))
    refused("^algo.tao is not a key of DiLoCo; it has", lambda: distributed("diloco", {"tao": 2}))
    refused("^topology must be one of.*did you mean ring.$", lambda: distributed("dpsgd", topology="rign"))
    for name in ("gossip", "adpsgd", "easgd", "downpour"):
        refused(f"^algo={name} needs engine=dist", lambda name=name: distributed(name))
    refused("^algo=sync needs engine=dist.*late$", lambda: distributed("sync", {"overlap": False, "backups": 1}))
    refused("same algorithm and options", lambda: distributed("diloco", {"tau": 2 + rank}))
    other = nn.Linear(2, 2 + rank)
    refused("same parameters and buffers", lambda: dsgd.torch.distribute(other, sgd(other)))
    module = network()
    refused("all 6 trained parameters, got 2", lambda: dsgd.torch.distribute(module, sgd(module[0])))
    adam = torch.optim.Adam(module.parameters())
    refused(
        "optimizer must be torch.optim.SGD", lambda: dsgd.torch.distribute(module, adam, "corrected", {"method": "qg"})
    )
    used = sgd(module)
    loss_of(module, 0).backward()
    used.step()
    refused("made no step before", lambda: dsgd.torch.distribute(module, used))
    wrapped = DistributedDataParallel(module)
    refused("must be the module itself", lambda: dsgd.torch.distribute(wrapped, sgd(wrapped)))
    mesh = init_device_mesh("cpu", (2,))
    sharded = nn.Linear(2, 2)
    fully_shard(sharded, mesh=mesh)
    refused("as weight is sharded, got None$", lambda: dsgd.torch.distribute(sharded, sgd(sharded)))
    both = nn.Linear(2, 2)
    fully_shard(both, mesh=init_device_mesh("cpu", (1, 2), mesh_dim_names=("all", "shards")))
    refused("mesh of one dimension, got weight", lambda: dsgd.torch.distribute(both, sgd(both), group=mesh))
    refused("needs? whole layers", lambda: dsgd.torch.distribute(sharded, sgd(sharded), "choco", group=mesh))
    rows = init_device_mesh("cpu", (1, 2))
    refused("with algo='localsgd' of two, got 2 dimensions", lambda: distributed("sync", group=rows))
    refused("^algo.group must be 2,.*got 1", lambda: distributed("localsgd", {"group": 1}, group=rows))
    apart = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    refused("on one device", lambda: dsgd.torch.distribute(apart, sgd(apart)))
    model = dsgd.torch.distribute(sharded, sgd(sharded), group=mesh)
    refused("without a scaler", lambda: model.step(torch.amp.GradScaler("cpu")))

    model = distributed("delayfree", {"tau": 4}, steps=3)
    for step in range(3):
        if step == 1:
            refused("multiple of 2 steps", model.state_dict)
        loss_of(model, step).backward()
        model.step()
    refused("at most 3 times", model.step)
    refused("before the first step", lambda: model.load_state_dict({}))
    model = distributed("diloco")
    refused("algo=Sync", lambda: distributed().load_state_dict(model.state_dict()))
    model.module.register_module("late", nn.Linear(2, 2))
    refused("all 8 trained parameters, got 6", model.step)
    model = distributed("diloco")
    model.half()
    refused("call to", model.step)


def a_mesh_has_the_group_and_the_groups_of_localsgd() -> None:
    rows, line = init_device_mesh("cpu", (1, 2)), init_device_mesh("cpu", (2,))
    module = network()
    model = dsgd.torch.distribute(module, sgd(module), group=line)
    assert model.worker.nodes == 2
    module = network()
    options = {"tau": 4, "inner_tau": 2}
    model = dsgd.torch.distribute(module, sgd(module), "localsgd", options, group=rows)
    xs = [torch.empty_like(model.worker.x) for _ in range(2)]
    for step in range(4):
        loss_of(model, step).backward()
        model.step()
        dist.all_gather(xs, model.worker.x)
        assert torch.equal(*xs) == (step % 2 == 1)  # both ranks are one row


def fewer_steps_of_a_rank_are_an_error_within_the_timeout_of_the_group() -> None:
    """Rank 1 is alive and makes no step: rank 0 waits for the 2 s of the group, not for the default's minute."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    assert isinstance(group, dist.ProcessGroup)
    module = network()
    model = dsgd.torch.distribute(module, sgd(module), "dpsgd", topology="complete", group=group)
    if dist.get_rank() == 0:
        loss_of(model, 0).backward()
        with pytest.raises(dsgd.torch.CommunicationFailed, match=r"^rank 0: exchange at step 0 failed.*timeout"):
            model.step()
    dist.barrier()


def a_dead_rank_is_an_error_that_names_the_operation() -> None:
    """Rank 1 makes one step less and ends, rank 0 waits for it: at once, as the connection is closed."""
    module = network()
    model = dsgd.torch.distribute(module, sgd(module), "diloco", {"tau": 2})
    loss_of(model, 0).backward()
    model.step()
    if dist.get_rank() == 0:
        loss_of(model, 1).backward()
        with pytest.raises(dsgd.torch.CommunicationFailed, match=r"^rank 0: all_reduce_mean at step 2 failed"):
            model.step()


def test_a_loop_may_do_what_loops_of_torch_do_and_bad_input_ends_in_one_line(tmp_path: Path) -> None:
    in_processes(tmp_path, "tests.engine.torch.test_own_loop:all_checks")
