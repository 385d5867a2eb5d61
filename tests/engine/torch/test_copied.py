"""Models whose parameters are no views of one vector: sharded by `fully_shard` within a node, or of several dtypes."""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import dsgd.torch
from tests.support.own_loops import in_processes

STEPS, ROWS = 8, 4
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "sync": ("sync", {}),
    "localsgd": ("localsgd", {"tau": 4, "switch": 3, "momentum": "average"}),
    "diloco, eager": ("diloco", {"tau": 4, "overlap": "eager", "olr": 0.3}),
    "sgp": ("sgp", {"overlap": 2}),
    "d2": ("corrected", {"method": "d2"}),
}


def network() -> nn.Sequential:
    """Rows of odd length, so that the ranks' shards are not equally long; the last layer is frozen."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2).requires_grad_(False)
    )
    return layers.double()


def inputs_of(step: int, replica: int, shard: int) -> Tensor:
    source = torch.Generator().manual_seed(100 * step + 10 * replica + shard)
    return torch.randn(ROWS, 6, dtype=torch.double, generator=source)


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    return (model(inputs) - 1.0).square().mean()


def whole(module: nn.Module) -> list[Tensor]:
    """Return the trained parameters without their shards: every rank of a node calls this."""
    trained = [parameter.detach() for parameter in module.parameters() if parameter.requires_grad]
    return [parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.clone() for parameter in trained]


def distributed(module: nn.Module, name: str, mesh: DeviceMesh) -> dsgd.torch.DistributedModel:
    algo, options = METHODS[name]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    return dsgd.torch.distribute(module, optimizer, algo, options, steps=STEPS, group=mesh["replicas"])


def sharded(mesh: DeviceMesh) -> nn.Module:
    module = network()
    for layer in (module[0], module[2], module):
        fully_shard(layer, mesh=mesh["shards"])
    return module


def train(model: dsgd.torch.DistributedModel, steps: range, inputs: Callable[[int], Tensor]) -> None:
    for step in steps:
        loss_of(model, inputs(step)).backward()
        model.step()
        with model.output():
            loss_of(model, inputs(step))  # an evaluation, after which fully_shard keeps whole parameters


def sharded_and_whole(folder: Path, _: None) -> None:
    """Two nodes of two ranks: each rank of a whole model has the batches of its node, so both take the same steps; and
    the model resumes exactly."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    replica, shard = mesh.get_coordinate() or (0, 0)

    def own(step: int) -> Tensor:
        return inputs_of(step, replica, shard)

    def nodes(step: int) -> Tensor:
        return torch.cat([inputs_of(step, replica, each) for each in range(2)])

    for name in METHODS:
        reference = distributed(network(), name, mesh)
        train(reference, range(STEPS), nodes)
        model, stored = distributed(sharded(mesh), name, mesh), io.BytesIO()
        train(model, range(STEPS // 2), own)
        torch.save(model.state_dict(), stored)
        train(model, range(STEPS // 2, STEPS), own)
        again = distributed(sharded(mesh), name, mesh)
        stored.seek(0)
        again.load_state_dict(torch.load(stored, weights_only=False))
        train(again, range(STEPS // 2, STEPS), own)
        for mine, resumed, theirs in zip(whole(model), whole(again), whole(reference), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12, msg=name)
            assert torch.equal(mine, resumed), name
        with model.output() as ours, reference.output() as theirs:
            for mine, other in zip(whole(ours), whole(theirs), strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12, msg=name)
    several_dtypes()


def several_dtypes() -> None:
    """Synchronous steps are those of DistributedDataParallel, to the precision of the narrower layer."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.narrow, self.wide = nn.Linear(6, 5), nn.Linear(5, 3).double()

        def forward(self, inputs: Tensor) -> Tensor:
            return self.wide(torch.tanh(self.narrow(inputs.float())).double())

    module = Mixed()
    theirs = DistributedDataParallel(deepcopy(module))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.5) for each in (module, theirs)]
    ours = dsgd.torch.distribute(module, optimizers[0])
    for step in range(STEPS):
        inputs = inputs_of(step, dist.get_rank(), 0)
        losses = [loss_of(model, inputs) for model in (ours, theirs)]
        torch.testing.assert_close(*losses, rtol=1e-6, atol=0.0)
        for loss in losses:
            loss.backward()
        ours.step()
        optimizers[1].step()
        optimizers[1].zero_grad()
    assert ours.worker.x.dtype == torch.double
    assert module.narrow.weight.dtype == torch.float


def test_a_sharded_model_takes_the_steps_of_the_whole_one_and_parameters_may_have_several_dtypes(
    tmp_path: Path,
) -> None:
    in_processes(tmp_path, "tests.engine.torch.test_copied:sharded_and_whole", nodes=4)
