"""Counterparts that install from PyPI: torchft, fairscale, Decent-DP."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from .training import Steps, Training


def torchft_manager(rank: int, nodes: int) -> tuple[Any, Any, TCPStore]:
    """Return a manager of torchft for this rank, the lighthouse of rank 0, where others have None, and the manager's
    store. Both must outlive it."""
    os.environ.setdefault("RUST_LOG", "error")
    lighthouse = None
    if rank == 0:
        coordination = import_module("torchft.coordination")
        lighthouse = coordination.LighthouseServer("127.0.0.1:0", min_replicas=nodes)
    address: list[str | None] = [None if lighthouse is None else lighthouse.address()]
    dist.broadcast_object_list(address)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = import_module("torchft.manager").Manager(
        import_module("torchft.process_group").ProcessGroupGloo(),
        None,
        None,
        min_replica_size=nodes,
        use_async_quorum=False,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=address[0],
        replica_id=str(rank),
        port=0,
        hostname="127.0.0.1",
        init_sync=False,
    )
    return manager, lighthouse, store


def torchft_diloco(training: Training) -> Steps:
    """Train by DiLoCo of torchft, and its streaming form: one fragment, or the first layer and the others."""
    local_sgd, options, layers = import_module("torchft.local_sgd"), training.algo, list(training.module.children())
    manager, lighthouse, _store = torchft_manager(training.rank, training.nodes)
    count = getattr(options, "fragments", 1)
    fragments = [training.module] if count == 1 else [nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:])]
    outer = [torch.optim.SGD(fragment.parameters(), options.olr, options.beta, nesterov=True) for fragment in fragments]
    inner = training.optimizer()
    streaming = {"fragment_sync_delay": options.delay, "fragment_update_alpha": options.mix} if count > 1 else {}
    with local_sgd.DiLoCo(manager, fragments, inner, outer, options.tau, **streaming):
        for step in range(training.steps):
            training.backward(training.module, step)
            inner.step()
            yield None
    dist.barrier()
    manager.shutdown(wait=False)
    if lighthouse is not None:
        lighthouse.shutdown()


def fairscale_slowmo(training: Training) -> Steps:
    """Train by SlowMo of fairscale, which by itself begins with what it finds after the first step, insists on single
    precision there, and waits for a GPU even where there is none."""
    warnings.simplefilter("ignore", FutureWarning)
    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda device=None: None
    package = import_module("fairscale.experimental.nn.data_parallel")
    options, optimizer = training.algo, training.optimizer()
    model = package.SlowMoDistributedDataParallel(
        training.module,
        nprocs_per_node=1,
        slowmo_momentum=options.beta,
        slowmo_lr=options.olr,
        slowmo_memory_efficient=False,
        slowmo_frequency=options.tau,
        localsgd_frequency=options.tau,
    )
    theta = training.vector()
    model.portion_start, model.portion_end = 0, len(theta)
    model.old_params, model.global_momentum_buffer = theta.clone(), torch.zeros_like(theta)
    model.global_momentum_buffers_initialized = True
    for step in range(training.steps):
        training.backward(model, step)
        optimizer.step()
        model.perform_slowmo(optimizer)
        yield None


def decent_dpsgd(training: Training) -> Steps:
    """Train by D-PSGD of Decent-DP, whose wrapper makes the steps within the backward pass, and zeroes the gradients.
    It makes the first step as it is called for the second: they must still be there."""
    import_module("loguru").logger.disable("decent_dp")
    package, group = import_module("decent_dp.ddp"), training.optimizer().param_groups[0]

    def local(named: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        return torch.optim.SGD([parameter for _, parameter in named], group["lr"], group["momentum"])

    model = package.DecentralizedDataParallel(
        training.module, local, topology=training.algo.topology.name, _local_world_size=1
    )
    model.zero_grad = lambda set_to_none=True: None
    for step in range(training.steps):
        training.backward(model, step)
        yield None
