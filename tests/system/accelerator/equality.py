"""Training on an emulated device beside the CPU. Run as a script this tells, as JSON, of each network which parameters
differ; with `ddp`, those of DDP over two processes."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from dsgd.models import declare_missing_operators

DEVICE = torch.device("emu:1")
TOKENS = torch.randint(0, 50, (2, 16), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.heads, self.classes = nn.Linear(32, 96), nn.Linear(32, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        q, k, v = self.heads(self.norm(x)).view(2, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        x = x + functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.classes(functional.gelu(x)).flatten(0, 1)


def mlp() -> nn.Module:
    dropout = nn.Dropout(0.3)
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 64), nn.ReLU(), dropout, nn.Linear(64, 10))


def resnet18() -> nn.Module:
    declare_missing_operators()
    from torchvision.models import resnet18

    return resnet18(num_classes=10)


def trained(network: nn.Module, inputs: torch.Tensor, device: torch.device, mixed: bool) -> dict[str, torch.Tensor]:
    """Return parameters, buffers and the last gradients after two steps, on the CPU."""
    net = copy.deepcopy(network).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(3)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed):
            y = net(inputs.to(device))
            loss = functional.cross_entropy(y, torch.arange(len(y), device=device) % y.shape[1])
        loss.backward()
        optimizer.step()
    gradients = {f"gradient of {name}": p.grad for name, p in net.named_parameters() if p.grad is not None}
    return {name: value.detach().cpu() for name, value in (net.state_dict() | gradients).items()}


def different(network: Callable[[], nn.Module], inputs: torch.Tensor, *, mixed: bool = False) -> list[str]:
    torch.manual_seed(0)
    net = network()
    if inputs.dim() == 4 and mixed:
        net = net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] (its stub lacks it)
    on_cpu = trained(net, inputs, torch.device("cpu"), mixed)
    on_device = trained(net, inputs, DEVICE, mixed)
    return [name for name, value in on_cpu.items() if not torch.equal(value, on_device[name])]


def all_differences() -> dict[str, list[str]]:
    networks = {"mlp": (mlp, IMAGES), "resnet18": (resnet18, IMAGES), "attention": (Block, TOKENS)}
    return {
        f"{name}{' in bfloat16' if mixed else ''}": different(*network, mixed=mixed)
        for name, network in networks.items()
        for mixed in (False, True)
    }


def by_ddp(device: torch.device) -> str:
    """Return the bytes of a network's parameters after five steps of this process's batches."""
    dist.init_process_group(dist.get_default_backend_for_device(device))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.BatchNorm1d(300), nn.Linear(300, 5)).to(device)
    model = DistributedDataParallel(net, bucket_cap_mb=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(16, 20, generator=batches).to(device)).square().mean().backward()
        optimizer.step()
    vector = nn.utils.parameters_to_vector(model.parameters()).detach().cpu()
    dist.destroy_process_group()
    return vector.numpy().tobytes().hex()


if __name__ == "__main__":
    if sys.argv[1:] == ["ddp"]:
        index = int(os.environ["RANK"])
        chosen = torch.device("cpu") if os.environ.get("ON_CPU") else torch.device("emu", index)
        if chosen.type != "cpu":
            torch.accelerator.set_device_index(index)
        print(by_ddp(chosen))
    else:
        print(json.dumps(all_differences()))
