"""The task of benchmarks/simulators.py by pfl: federated averaging, a user for each worker."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false

from __future__ import annotations

from collections import Counter
from itertools import cycle

import torch
from local_sgd_task import LR, ROUNDS, TASK, WORKERS, batches, network, print_loss
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

set_framework_module(pytorch_ops)
taken = Counter[int]()


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)

    def loss(self, inputs: Tensor, labels: Tensor, eval: bool = False) -> Tensor:
        return nn.functional.cross_entropy(self(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor, eval: bool = True) -> dict[str, Weighted]:
        return {}


def own_round(worker: int) -> Dataset:
    inputs, labels = batches(worker, taken[worker])
    taken[worker] += 1
    return Dataset(raw_data=[inputs.flatten(0, 1), labels.flatten()], user_id=str(worker))


users = cycle(range(WORKERS))
data = FederatedDataset(own_round, lambda: next(users))
module = Network()
model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=ROUNDS, evaluation_frequency=10**9, train_cohort_size=WORKERS, val_cohort_size=0
    ),
    backend=SimulatedBackend(data, data),
    model=model,
    model_train_params=NNTrainHyperParams(
        local_batch_size=TASK["inputs"].shape[2], local_num_epochs=1, local_learning_rate=LR
    ),
)
print_loss(module)
