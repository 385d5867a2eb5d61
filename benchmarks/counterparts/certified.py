"""Other people's hooks, optimizers and wrappers, with the interfaces that `dsgd-certify` takes.

    PYTHONPATH=.:benchmarks dsgd-certify counterparts.certified:PowerSGD

What an adapter changes is said in its docstring. Each imports its package when it is made.
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dsgd.compression.codes import first_q, split

from .torch_packages import torchft_manager

Options = dict[str, Any]
HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
LOCAL: Options = {"tau": 4}
OUTER: Options = {"tau": 4, "olr": 0.7, "beta": 0.9}


class TorchAllReduce:
    """torch's `allreduce_hook`."""

    interface, algo = "hook", "sync"

    def __call__(self, bucket: Any) -> torch.futures.Future[Tensor]:
        return import_module(f"{HOOKS}.default_hooks").allreduce_hook(None, bucket)


class TorchHalf(TorchAllReduce):
    """torch's `bf16_compress_hook`, which is to differ: it rounds."""

    def __call__(self, bucket: Any) -> torch.futures.Future[Tensor]:
        return import_module(f"{HOOKS}.default_hooks").bf16_compress_hook(None, bucket)


class PowerSGD:
    """torch's `powerSGD_hook`, which compresses from the first pass on and begins with dsgd's Q."""

    interface, algo = "hook", "compressed"
    options: ClassVar[Options] = {"rank": 2}

    def __init__(self, rank: int) -> None:
        self.hooks = import_module(f"{HOOKS}.powerSGD_hook")
        self.state = self.hooks.PowerSGDState(None, rank, start_powerSGD_iter=2, min_compression_rate=1)
        self.state.iter = self.state.start_powerSGD_iter
        self.rank = rank

    def __call__(self, bucket: Any) -> torch.futures.Future[Tensor]:
        if bucket.index() not in self.state.q_memory_dict:
            # Layers are in the order of their gradients, from the last to the first, and have different shapes.
            shapes = [tuple(parameter.shape) for parameter in reversed(bucket.parameters())]
            layers, _ = split(shapes, self.rank)
            sizes = [m * self.rank for _, _, m in layers]
            q = first_q(bucket.buffer(), sum(sizes), 0)
            self.state.q_memory_dict[bucket.index()] = torch.cat(q[: sum(sizes)].split(sizes)[::-1])
            self.state.p_memory_dict[bucket.index()] = q.new_empty(sum(n for _, n, _ in layers) * self.rank)
        return self.hooks.powerSGD_hook(self.state, bucket)


class PostLocalSGD:
    """torch's `PostLocalSGDOptimizer` with `post_localSGD_hook` and `PeriodicModelAverager`, as documented."""

    interface, algo = "wrapper", "localsgd"
    options: ClassVar[Options] = {"tau": 4, "switch": 5}
    waits, shares_buffers = False, True

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tau: int, switch: int) -> None:
        hooks = import_module(f"{HOOKS}.post_localSGD_hook")
        averagers = import_module("torch.distributed.algorithms.model_averaging.averagers")
        alone, _ = dist.new_subgroups(group_size=1)
        self.model = DistributedDataParallel(model, broadcast_buffers=self.shares_buffers)
        self.model.register_comm_hook(hooks.PostLocalSGDState(None, alone, switch), hooks.post_localSGD_hook)
        averager = averagers.PeriodicModelAverager(tau, warmup_steps=switch + (tau - 1 if self.waits else 0))
        self.optimizer = import_module("torch.distributed.optim").PostLocalSGDOptimizer(optimizer, averager)

    def step(self) -> None:
        self.optimizer.step()


class PostLocalSGDOwnBuffers(PostLocalSGD):
    """The same with `broadcast_buffers=False`."""

    shares_buffers = False


class PostLocalSGDWholeRounds(PostLocalSGDOwnBuffers):
    """The same, told to wait for a whole round before the first average."""

    waits = True


class PeriodicAverager:
    """torch's `PeriodicModelAverager` alone, told to wait for a whole round."""

    interface, algo, options = "wrapper", "localsgd", LOCAL

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tau: int) -> None:
        averagers = import_module("torch.distributed.algorithms.model_averaging.averagers")
        self.module, self.optimizer = model, optimizer
        self.averager = averagers.PeriodicModelAverager(tau, warmup_steps=tau - 1)

    def step(self) -> None:
        self.optimizer.step()
        self.averager.average_parameters(self.module.parameters())


class AccelerateLocalSGD:
    """accelerate's `LocalSGD`, as documented."""

    interface, algo, options = "wrapper", "localsgd", LOCAL

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tau: int) -> None:
        package = import_module("accelerate")
        accelerator = package.Accelerator(cpu=True)
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        rounds = import_module("accelerate.local_sgd").LocalSGD(accelerator, self.model, tau)
        self.rounds = rounds.__enter__()

    def step(self) -> None:
        self.optimizer.step()
        self.rounds.step()


class TorchftLocalSGD:
    """torchft's `LocalSGD`, with a lighthouse and a manager for each rank."""

    interface, algo, options = "wrapper", "localsgd", LOCAL

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tau: int) -> None:
        manager, *self.kept = torchft_manager(dist.get_rank(), dist.get_world_size())
        self.optimizer = optimizer
        self.rounds = import_module("torchft.local_sgd").LocalSGD(manager, model, optimizer, tau).__enter__()

    def step(self) -> None:
        self.optimizer.step()


class TorchftDiLoCo:
    """torchft's `DiLoCo` with one fragment, likewise."""

    interface, algo, options = "wrapper", "diloco", OUTER

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tau: int, olr: float, beta: float) -> None:
        manager, *self.kept = torchft_manager(dist.get_rank(), dist.get_world_size())
        self.optimizer = optimizer
        outer = torch.optim.SGD(model.parameters(), olr, beta, nesterov=beta > 0)
        self.rounds = import_module("torchft.local_sgd").DiLoCo(manager, [model], optimizer, outer, tau).__enter__()

    def step(self) -> None:
        self.optimizer.step()


class GymDiLoCo:
    """EXO Gym's `DiLoCoStrategy`, as it is."""

    interface, algo, options = "wrapper", "diloco", OUTER
    is_adapted = False

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tau: int, olr: float, beta: float) -> None:
        package = import_module("exogym.strategy")
        outer = package.OptimSpec(torch.optim.SGD, lr=olr, momentum=beta, nesterov=beta > 0)
        self.strategy = package.DiLoCoStrategy(outer_optim_spec=outer, H=tau)
        self.strategy._init_node(model, dist.get_rank(), dist.get_world_size())
        self.strategy.optim, self.module = optimizer, model
        self.strategy.local_step += self.is_adapted

    def step(self) -> None:
        self.strategy.step()
        for parameter in self.module.parameters() if self.is_adapted else ():
            parameter.data = parameter.data.clone()


class GymDiLoCoAdapted(GymDiLoCo):
    """The same, counted from one, with memory of its own for each rank's parameters."""

    is_adapted = True


class DilocoSim:
    """diloco-sim's `DilocoSimulator._outer_step`, called after each round."""

    interface, algo, options = "wrapper", "diloco", OUTER

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tau: int, olr: float, beta: float) -> None:
        simulator = import_module("diloco_sim").DilocoSimulator
        self.simulator = simulator.__new__(simulator)
        self.simulator.rank, self.simulator.model = dist.get_rank(), model
        outer = {"lr": olr, "momentum": beta, "nesterov": beta > 0}
        self.simulator.config = SimpleNamespace(
            num_nodes=dist.get_world_size(), outer_optimizer_cls=torch.optim.SGD, outer_optimizer_kwargs=outer
        )
        if self.simulator.rank == 0:
            self.simulator._setup_master_model()
            self.simulator._setup_master_optimizer()
        self.optimizer, self.tau, self.made = optimizer, tau, 0

    def step(self) -> None:
        self.optimizer.step()
        self.made += 1
        if self.made % self.tau == 0:
            self.simulator._outer_step()
