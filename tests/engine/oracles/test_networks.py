"""Real networks on real data, against torch.optim.SGD driven by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dsgd.algorithms.sync import Sync
from dsgd.cluster import Cluster
from dsgd.data import Digits
from dsgd.engines.sim.simulation import Simulation
from dsgd.experiment import Budget, Evaluation, Experiment, Target
from dsgd.models import MLP, ModelConfig, ResNet
from dsgd.optim.optimizer import SGD
from dsgd.optim.schedule import Schedule
from dsgd.topology import Ring
from dsgd.worker import Algorithm

torch.set_num_threads(1)
STEPS = 12


def simulation_of(algo: Algorithm, nodes: int, optimizer: SGD, model: ModelConfig) -> Simulation:
    return Simulation(
        Experiment(
            nodes=nodes,
            batch_size=8,
            seed=5,
            precision="fp64",
            algo=algo,
            model=model,
            data=Digits(),
            optimizer=optimizer,
            schedule=Schedule(),
            cluster=Cluster(0.01, 1e9, 1e-4, slow_nodes={0: 1.5}),
            topology=Ring().build(nodes, 5),
            budget=Budget(steps=STEPS),
            eval=Evaluation(train_samples=8),
            target=Target(),
        )
    )


def output(simulation: Simulation) -> Tensor:
    """The mean of the workers' parameters [d] at the end of the run."""
    for _ in simulation.run():
        pass
    assert simulation.status == "completed"
    return torch.stack([node.worker.x for node in simulation.machine.nodes]).mean(dim=0)


def by_hand(simulation: Simulation, optimizer: SGD) -> Tensor:
    """The parameters [d] that torch.optim.SGD reaches with the batches of all workers put together."""
    module: nn.Module = copy.deepcopy(simulation.problem.module)
    data = simulation.problem.data
    sgd = torch.optim.SGD(
        module.parameters(),
        lr=optimizer.lr,
        momentum=optimizer.momentum,
        nesterov=optimizer.nesterov,
        weight_decay=optimizer.weight_decay,
    )
    for step in range(STEPS):
        batches = [data.batch(rank, step) for rank in range(simulation.experiment.nodes)]
        inputs, labels = (torch.cat(column) for column in zip(*batches, strict=True))
        sgd.zero_grad()
        F.cross_entropy(module(inputs), labels).backward()
        sgd.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def assert_close(actual: Tensor, expected: Tensor, start: Tensor, relative: float) -> None:
    """No element is further off than `relative` times the largest; and training has gone somewhere."""
    assert float((expected - start).abs().max()) > 0.01
    assert float((actual - expected).abs().max()) <= relative * float(expected.abs().max())


PLAIN = SGD(lr=0.1)
NESTEROV = SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)


@pytest.mark.parametrize(
    ("model", "optimizer", "overlap"),
    [(MLP([16]), PLAIN, False), (ResNet(8, width=4, norm="group"), NESTEROV, True)],
)
def test_synchronous_workers_are_one_worker_with_all_batches(model: ModelConfig, optimizer: SGD, overlap: bool):
    """p workers of b samples are SGD on the p b samples together, where nothing is normalised over a batch."""
    simulation = simulation_of(Sync(overlap), 4, optimizer, model)
    start, x = simulation.problem.start.clone(), by_hand(simulation, optimizer)
    assert_close(output(simulation), x, start, 1e-10)


def test_batch_norm_tells_the_workers_from_one_with_all_batches():
    """A batch is normalised where it is: with batch norm the same comparison must fail, so the one above can."""
    simulation = simulation_of(Sync(), 4, PLAIN, ResNet(8, width=4, norm="batch"))
    x = by_hand(simulation, PLAIN)
    assert float((output(simulation) - x).abs().max()) > 1e-4
