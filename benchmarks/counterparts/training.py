"""Other people's implementations of what dsgd has, trained in processes of their own on the same data.

As many processes as there are workers, forked like those of the engine, begin with the initial parameters of the
configuration, take its batches, and make its steps by torch's optimiser. Worker i leaves in <folder>/<case>/<i>.npy,
[steps, d], the parameters at which it has taken its gradients. The counterparts here are torch's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from dsgd.compression.codes import first_q, split
from dsgd.experiment import Experiment
from dsgd.optim.optimizer import SGD, AdamW
from dsgd.problem.problem import Problem, build_problem
from tests.support.forked import forked

Steps = Iterator["Tensor | None"]  # one item for every step


@dataclass(frozen=True)
class Training:
    """What a counterpart is given: the module with its initial parameters, the batches, and what was configured.

    points: the parameters at each gradient so far."""

    experiment: Experiment
    problem: Problem
    rank: int
    points: list[Tensor] = field(default_factory=list)

    @property
    def module(self) -> nn.Module:
        return self.problem.module

    @property
    def algo(self) -> Any:
        """The algorithm's options."""
        return self.experiment.algo

    @property
    def nodes(self) -> int:
        return self.experiment.nodes

    @property
    def steps(self) -> int:
        steps = self.experiment.budget.steps
        assert steps is not None
        return steps

    def optimizer(self) -> torch.optim.Optimizer:
        """torch's, with our options."""
        ours, parameters = self.experiment.optimizer, self.module.parameters()
        if isinstance(ours, AdamW):
            betas = (ours.betas[0], ours.betas[1])
            return torch.optim.AdamW(parameters, ours.lr, betas, ours.eps, ours.weight_decay)
        assert isinstance(ours, SGD)
        return torch.optim.SGD(
            parameters, ours.lr, ours.momentum, weight_decay=ours.weight_decay, nesterov=ours.nesterov
        )

    def vector(self) -> Tensor:
        """A copy of the parameters, [d]."""
        return parameters_to_vector(self.module.parameters()).detach().clone()

    def backward(self, model: nn.Module, step: int) -> None:
        """Leave the gradient of this worker's batch in the parameters."""
        model.zero_grad()
        inputs, targets = self.problem.data.batch(self.rank, step)
        outputs = model(inputs)
        self.points.append(self.vector())  # a wrapper may change them as it is called
        self.problem.data.loss(outputs, targets).backward()


def power_sgd(training: Training) -> Steps:
    """torch's hook of DistributedDataParallel, which begins with our first Q.

    The hook compresses from the third pass on, when DistributedDataParallel has put its buckets in order: two passes
    come before the training, and what they find is thrown away."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as theirs

    options, layout = training.algo, training.problem.layout
    model, optimizer = DistributedDataParallel(training.module), training.optimizer()
    state = theirs.PowerSGDState(None, options.rank, start_powerSGD_iter=2, min_compression_rate=1)
    layers, _ = split(layout, options.rank)
    q = first_q(training.vector(), training.problem.dimension, options.seed)
    parts = iter(q[: sum(m for *_, m in layers) * options.rank].split([m * options.rank for *_, m in layers]))
    begins = np.cumsum([0, *(parameter.numel() for parameter in training.module.parameters())])
    compressed = {begin for begin, *_ in layers}
    first = {
        parameter: next(parts)
        for parameter, begin in zip(training.module.parameters(), begins, strict=False)
        if begin in compressed
    }

    def hook(state, bucket):  # without annotations, of which torch takes no strings
        index = bucket.index()
        if state.iter == state.start_powerSGD_iter and index not in state.q_memory_dict:
            by_shape: dict[tuple[int, int], list[nn.Parameter]] = {}  # the order in which the hook has them
            for parameter in bucket.parameters():
                if parameter in first:
                    n, m = parameter.shape[0], parameter[0].numel()
                    by_shape.setdefault((n, m), []).append(parameter)  # pyright: ignore[reportArgumentType]
            found = [first[parameter] for of_shape in by_shape.values() for parameter in of_shape]
            rows = sum(n * options.rank * len(of_shape) for (n, _), of_shape in by_shape.items())
            state.p_memory_dict[index] = q.new_empty(rows)
            state.q_memory_dict[index] = torch.cat(found) if found else q.new_empty(0)
        return theirs.powerSGD_hook(state, bucket)

    model.register_comm_hook(state, hook)
    for _ in range(state.start_powerSGD_iter):
        training.backward(model, 0)
    training.points.clear()
    for step in range(training.steps):
        training.backward(model, step)
        optimizer.step()
        yield None


def periodic_averager(training: Training) -> Steps:
    """torch's averager of local SGD, told to wait for a whole round: by itself it averages after the first step."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    tau = training.algo.tau
    optimizer, averager = training.optimizer(), PeriodicModelAverager(tau, warmup_steps=tau - 1)
    for step in range(training.steps):
        training.backward(training.module, step)
        optimizer.step()
        averager.average_parameters(training.module.parameters())
        yield None


def post_local(training: Training) -> Steps:
    """torch's optimiser and hook of post-local SGD, the averager told to wait for a whole round after the switch."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hooks
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer  # pyright: ignore[reportPrivateImportUsage]

    tau, switch = training.algo.tau, training.algo.switch
    alone, _ = dist.new_subgroups(group_size=1)
    model = DistributedDataParallel(training.module)
    model.register_comm_hook(hooks.PostLocalSGDState(None, alone, switch), hooks.post_localSGD_hook)
    averager = PeriodicModelAverager(tau, warmup_steps=switch + tau - 1)
    optimizer = PostLocalSGDOptimizer(training.optimizer(), averager)
    for step in range(training.steps):
        training.backward(model, step)
        optimizer.step()
        yield None


Counterpart = Callable[[Training], Steps]
Cases = Mapping[str, tuple[Counterpart, Experiment]]
COUNTERPARTS: dict[str, Counterpart] = {
    "power_sgd": power_sgd,
    "periodic_averager": periodic_averager,
    "post_local": post_local,
}


def points(folder: Path, nodes: int) -> np.ndarray:
    """Return the parameters at which the workers of a case took their gradients, [nodes, steps, d]."""
    return np.stack([np.load(folder / f"{rank}.npy") for rank in range(nodes)])


def train(folder: Path, counterpart: Counterpart, configured: Experiment, rank: int) -> None:
    training = Training(configured, build_problem(configured), rank)
    for _ in counterpart(training):
        pass
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{rank}.npy", torch.stack(training.points).numpy())


def work(folder: Path, cases: Cases, nodes: int, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=nodes)
    for case, (counterpart, configured) in cases.items():
        train(folder / case, counterpart, configured, rank)
    dist.barrier()
    dist.destroy_process_group()


def carry_out(folder: Path, cases: Cases) -> int:
    """Train the cases, one after the other, in as many processes as they have workers. Returns 0 if all ended well."""
    torch.set_num_threads(1)  # no pool of threads may exist when a process forks
    (nodes,) = {configured.nodes for _, configured in cases.values()}
    folder.mkdir(parents=True, exist_ok=True)
    pids = forked(nodes, lambda rank: work(folder, cases, nodes, rank))
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return max(map(abs, statuses))
