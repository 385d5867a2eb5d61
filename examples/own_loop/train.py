"""A training script of plain PyTorch, and what dsgd changes in it: the lines marked with <-.

torchrun --nproc-per-node=2 train.py --algo diloco --options '{"tau": 8}'
torchrun --nproc-per-node=2 train.py --algo ddp       # DistributedDataParallel, which `sync` equals
"""

from __future__ import annotations

import argparse
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import dsgd.torch  # <-

EPOCHS, BATCH_SIZE = 3, 16


def load(count: int, seed: int) -> TensorDataset:
    """Return points in a square with the quadrant that they are in."""
    points = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return TensorDataset(points, (points[:, 0] > 0).long() + 2 * (points[:, 1] > 0).long())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", default="sync")
    parser.add_argument("--options", type=json.loads, default={})
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, test = load(1024, seed=0), load(512, seed=1)
    sampler = DistributedSampler(train, seed=0)
    module = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    if arguments.algo == "ddp":
        model = DistributedDataParallel(module)
    else:
        model = dsgd.torch.distribute(module, optimizer, arguments.algo, arguments.options)  # <-

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for points, labels in DataLoader(train, BATCH_SIZE, sampler=sampler):
            loss = nn.functional.cross_entropy(model(points), labels)
            loss.backward()
            if isinstance(model, DistributedDataParallel):
                optimizer.step()
                optimizer.zero_grad()
            else:
                model.step()  # <-
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                print(f"loss {float(mean):.9f}")
    if isinstance(model, dsgd.torch.DistributedModel):
        with model.output() as output:  # <- on every rank
            correct = accuracy(output, test)
        if dist.get_rank() == 0:
            print(f"accuracy {correct:.3f}")
    del model  # before its process group: the end of DistributedDataParallel may hang in gloo otherwise
    dist.destroy_process_group()


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    points, labels = data.tensors
    return float((model.eval()(points).argmax(dim=1) == labels).double().mean())


if __name__ == "__main__":
    main()
