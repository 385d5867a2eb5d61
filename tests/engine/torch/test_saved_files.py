"""The files that other libraries write of a distributed model equal those of the same model undistributed, byte for
byte: no tensor shares its memory with others, and none is left out. In two gloo processes.

`.ci/run` requires safetensors and accelerate, which other environments may lack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import dsgd.torch
from tests.support.own_loops import in_processes
from tests.support.required import need

Write = Callable[[nn.Module, Path], object]  # the files of a model, into an empty folder


class Network(nn.Module):
    """Has what a file may hold: parameters, one of them frozen, two names of one, buffers, several axes, two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.fixed = nn.Parameter(torch.randn(3), requires_grad=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(self.first(images)).relu().mean(dim=(2, 3))) * self.scale.float()


def state_of(model: nn.Module, folder: Path) -> None:
    torch.save(model.state_dict(), folder / "state.pt")


def whole_of(model: nn.Module, folder: Path) -> None:
    torch.save(model, folder / "model.pt")


def part_of(model: nn.Module, folder: Path) -> None:
    torch.save(model.get_submodule("norm").state_dict(), folder / "norm.pt")


def safetensors_of(model: nn.Module, folder: Path) -> None:
    safetensors: Any = import_module("safetensors.torch")
    safetensors.save_model(model, str(folder / "model.safetensors"))
    parts = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("head")}
    safetensors.save_file(parts, folder / "parts.safetensors")


def accelerate_of(model: nn.Module, folder: Path) -> None:
    accelerator: Any = import_module("accelerate").Accelerator(cpu=True)
    accelerator.save_model(model, str(folder / "published"))
    accelerator.prepare_model(model)
    accelerator.save_state(str(folder / "state"))
    (folder / "state" / "random_states_0.pkl").unlink()  # of this process, not of the model
    accelerator.free_memory()


WRITERS: dict[str, Write] = {
    "torch": lambda *given: [write(*given) for write in (state_of, whole_of, part_of)],
    "safetensors": safetensors_of,
    "accelerate": accelerate_of,
}


def files_of(write: Write, model: nn.Module, folder: Path) -> dict[str, bytes]:
    folder.mkdir(parents=True)
    write(model, folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def shown(model: dsgd.torch.DistributedModel) -> Iterator[tuple[str, nn.Module]]:
    yield "in training", model.module
    with model.output() as module:
        yield "output model", module


def write_all(folder: Path, package: str) -> None:
    rank = torch.distributed.get_rank()
    for algo, options in (("sync", {}), ("diloco", {"tau": 2})):
        module = Network()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        model = dsgd.torch.distribute(module, optimizer, algo, options)
        for step in range(3):
            images = torch.randn(8, 1, 5, 5, generator=torch.Generator().manual_seed(2 * step + rank))
            cross_entropy(model(images), torch.arange(8) % 5).backward()
            model.step()
        optimizer.zero_grad()
        for kind, here in shown(model):
            alone = Network()
            alone.load_state_dict(here.state_dict())
            at = folder / f"{algo}, {kind}, rank {rank}"
            expected = files_of(WRITERS[package], alone, at / "alone")
            assert files_of(WRITERS[package], here, at / "distributed") == expected
            assert not torch.equal(alone.scale, Network().scale)


@pytest.mark.parametrize("package", WRITERS)
def test_files_of_a_distributed_model_are_those_of_the_undistributed_one(package: str, tmp_path: Path) -> None:
    need(package, None if find_spec(package) else f"needs pip install {package}")
    in_processes(tmp_path, "tests.engine.torch.test_saved_files:write_all", package)
