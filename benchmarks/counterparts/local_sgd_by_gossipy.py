"""The task of benchmarks/simulators.py by gossipy: gossip of all with all, with equal weights, is exact averaging."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false

from __future__ import annotations

import numpy as np
import torch
from gossipy import set_seed
from gossipy.core import AntiEntropyProtocol, CreateModelMode, MixingMatrix, StaticP2PNetwork
from gossipy.data import DataDispatcher
from gossipy.data.handler import ClassificationDataHandler
from gossipy.model import TorchModel
from gossipy.model.handler import WeightedTMH
from gossipy.node import All2AllGossipNode
from gossipy.simul import All2AllGossipSimulator
from local_sgd_task import LR, ROUNDS, TASK, WORKERS, make_steps, network, print_loss
from torch import Tensor, nn

set_seed(0)


class Network(TorchModel):
    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def init_weights(self) -> None:
        pass

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


class InOrder(WeightedTMH):
    """Makes a round of steps on the batches of the task: gossipy would draw its own."""

    def _update(self, data: tuple[Tensor, Tensor]) -> None:
        make_steps(self.model, int(data[0][0, 0]), self.n_updates)
        self.n_updates += 1


class Mean(MixingMatrix):
    """Weighs all alike. UniformMixing does, too, but gives node 0 weights whose sum is 8 / 9: its network takes the
    number 0 for no node, and counts all."""

    def get(self, node_id: int) -> np.ndarray:
        return np.ones(WORKERS) / WORKERS


named = np.zeros((WORKERS, TASK["inputs"].shape[-1]), dtype=np.float32)
named[:, 0] = range(WORKERS)  # the data of a node are its number
labels = np.arange(WORKERS) % 10
tensors = [torch.from_numpy(array) for array in (named, labels, named[:1], labels[:1])]
dispatcher = DataDispatcher(ClassificationDataHandler(*tensors), n=WORKERS, eval_on_user=False, auto_assign=True)
topology = StaticP2PNetwork(WORKERS)
nodes = All2AllGossipNode.generate(
    data_dispatcher=dispatcher,
    p2p_net=topology,
    model_proto=InOrder(
        net=Network(),
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": LR},
        criterion=nn.CrossEntropyLoss(),
        create_model_mode=CreateModelMode.MERGE_UPDATE,
    ),
    round_len=1,
    sync=True,
)
simulator = All2AllGossipSimulator(
    nodes=nodes, data_dispatcher=dispatcher, delta=1, protocol=AntiEntropyProtocol.PUSH, sampling_eval=0.125
)
simulator.init_nodes(seed=0)  # makes the first round of steps
simulator.start(Mean(topology), n_rounds=ROUNDS)
mean = network()
with torch.no_grad():
    models = [node.model_handler.model.parameters() for node in nodes.values()]
    for parameter, *others in zip(mean.parameters(), *models, strict=True):
        parameter.copy_(torch.stack(others).mean(0))
print_loss(mean)
