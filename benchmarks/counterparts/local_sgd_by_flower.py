"""The task of benchmarks/simulators.py by Flower: federated averaging, a simulated client for each worker."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from local_sgd_task import ROUNDS, WORKERS, make_steps, network, print_loss
from torch import nn

last: list[Any] = []


def load(model: nn.Module, arrays: list[Any]) -> None:
    with torch.no_grad():
        for parameter, array in zip(model.parameters(), arrays, strict=True):
            parameter.copy_(torch.from_numpy(array))


def arrays_of(model: nn.Module) -> list[Any]:
    return [parameter.detach().numpy() for parameter in model.parameters()]


class Worker(NumPyClient):
    def __init__(self, worker: int) -> None:
        self.worker = worker

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        model = network()
        load(model, parameters)
        make_steps(model, self.worker, config["round"])
        return arrays_of(model), 1, {}


class Kept(FedAvg):
    def aggregate_fit(self, *arguments: Any) -> Any:
        mean = super().aggregate_fit(*arguments)
        last[:] = [mean[0]]
        return mean


def client(context: Context) -> Any:
    return Worker(int(context.node_config["partition-id"])).to_client()


def server(_: Context) -> ServerAppComponents:
    strategy = Kept(
        fraction_evaluate=0.0, min_fit_clients=WORKERS, min_available_clients=WORKERS, inplace=False,
        on_fit_config_fn=lambda number: {"round": number - 1},
        initial_parameters=ndarrays_to_parameters(arrays_of(network())),
    )  # fmt: skip
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))


run_simulation(
    server_app=ServerApp(server_fn=server),
    client_app=ClientApp(client_fn=client),
    num_supernodes=WORKERS,
    backend_config={"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1}},
)
model = network()
load(model, parameters_to_ndarrays(last[0]))
print_loss(model)
