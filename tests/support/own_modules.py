"""Networks of the kinds that people write, each with code that a faster way than the module itself would lose: for the
digits, [b, 1, 8, 8] to 10 logits."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import relu
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

SEEN: list[int] = []  # what a forward pass remembers outside of its module


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(relu(self.a(x.flatten(1))))


# Hooks and their like


class ClippedGradients(Two):
    def __init__(self) -> None:
        super().__init__()
        for p in self.parameters():
            p.register_hook(lambda g: g.clamp(-0.001, 0.001))


def clip(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-0.001, 0.001)


class ClippedWhenAccumulated(Two):
    def __init__(self) -> None:
        super().__init__()
        self.a.weight.register_post_accumulate_grad_hook(clip)


class LimitedOutputs(Two):
    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda m, i, o: o.clamp(-0.2, 0.2))


class ClippedInside(Two):
    """A hook of an activation."""

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.a(x.flatten(1)))
        if y.requires_grad:
            y.register_hook(lambda g: g.clamp(-0.001, 0.001))
        return self.b(y)


class WeightNormed(Two):
    def __init__(self) -> None:
        super().__init__()
        self.a = parametrizations.weight_norm(self.a)


class Patched(Two):
    def __init__(self) -> None:
        super().__init__()
        whole = self.forward
        self.forward = lambda x: whole(x).clamp(-0.2, 0.2)


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class OwnLayer(Two):
    def __init__(self) -> None:
        super().__init__()
        self.a = Doubled(64, 16)


class OwnCall(Two):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x).clamp(-0.2, 0.2)


class LabelledWeight(Tensor):
    """A tensor of another type."""


class OtherTensors(Two):
    def __init__(self) -> None:
        super().__init__()
        self.a.weight = nn.Parameter(self.a.weight.detach().as_subclass(LabelledWeight))


# Backward passes within the backward pass


class Checkpointed(nn.Module):
    """One layer three times. reentrant: for each time, or None for no checkpoint."""

    def __init__(self, *reentrant: bool | None) -> None:
        super().__init__()
        self.f, self.m, self.b = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)
        self.reentrant = reentrant or (True, True, True)

    def block(self, x: Tensor) -> Tensor:
        return x + relu(self.m(x))

    def forward(self, x: Tensor) -> Tensor:
        x = self.f(x.flatten(1))
        for kind in self.reentrant:
            y: Any = self.block(x) if kind is None else checkpoint(self.block, x, use_reentrant=kind)
            x = y
        return self.b(x)


def checkpointed_in_part() -> nn.Module:
    return Checkpointed(True, None, False)


class Trained(Two):
    """A backward pass of its own, beside that of the run."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            (0.01 * self.a.weight.square().sum()).backward()
        return super().forward(x)


# State


class Counting(Two):
    """A schedule by a counter that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += self.training
        return super().forward(x) / (1 + 0.1 * self.count)


class Logging(Two):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        self.log.append(1.0)
        return super().forward(x) * (1 if len(self.log) > 3 else 0.5)


class Remembering(Two):
    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(1)
        return super().forward(x)


class Centred(nn.Module):
    """A running mean that each pass replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(64, 10)
        self.register_buffer("mean", torch.zeros(64))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1) + 5
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return self.a(x - self.mean)


class CentredInPlace(Centred):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("again", self.mean)  # the same tensor
        self.register_buffer("part", self.mean[:5], persistent=False)
        self.part: Tensor

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1) + 5
        if self.training:
            self.mean.mul_(0.9).add_(x.mean(0).detach(), alpha=0.1)
        return self.a(x - self.get_buffer("again")) + self.part.sum()


class Scheduled(Two):
    """Counts its batches, marks units that were used, and has a buffer that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(2**40 + 1))
        self.register_buffer("small", torch.tensor([1, -2, 3], dtype=torch.int8))
        self.register_buffer("used", torch.zeros(16, dtype=torch.bool))
        self.register_buffer("nothing", None)
        self.register_buffer("signal", torch.ones(3, dtype=torch.complex64))
        self.steps: Tensor
        self.small: Tensor
        self.used: Tensor
        self.signal: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.a(x.flatten(1)))
        if self.training:
            self.steps += 1
            self.used = self.used | (y.detach() > 1).any(dim=0)
            self.signal.mul_(1j)
        return self.b(y * (1 + self.used)) / (1 + 0.1 * (self.steps % 16)) + self.signal.real.sum()


def cumulative_of_torch() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16, momentum=None), nn.Linear(16, 10))


class Clamped(Two):
    """Keeps its weights small."""

    def forward(self, x: Tensor) -> Tensor:
        self.a.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


class ViewOfAWeight(Two):
    """A buffer that is a view of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("part", self.b.weight.detach()[:5])
        self.part: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.part.sum(dim=1).repeat(2)


class Fourier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(33, dtype=torch.complex64)), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.fft.irfft(torch.fft.rfft(x.flatten(1)) * self.w, n=64))


class Frozen(Two):
    """A fixed parameter, one that nothing uses, and an embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.a.bias.requires_grad_(False)
        self.idle = nn.Parameter(torch.ones(3))
        self.table = nn.Embedding(5, 10, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.table(torch.arange(len(x)) % 4)


# Ways that depend on values, and random numbers


class Branching(Two):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if float(y.detach().abs().max()) < 0.5 else 0.5 * y


class PythonNoise(Two):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (random.random() if self.training else 1)


class NumpyNoise(Two):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (float(np.random.rand()) if self.training else 1)


class TorchNoise(Two):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (torch.rand(10) if self.training else 1)


class LimitedInEvaluation(Two):
    """Differs from training where outputs are large, which few are at the start."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.training else y + relu(y - 1)


LOOP: dict[str, str] = {  # by name, and what the line says
    "ClippedGradients": "a hook of the parameter a.weight",
    "ClippedWhenAccumulated": "a hook of the parameter a.weight",
    "LimitedOutputs": "a hook of LimitedOutputs",
    "ClippedInside": "a hook that ClippedInside registers in its forward pass",
    "WeightNormed": "a parametrization of a ",
    "Patched": "Patched, whose forward is another one",
    "OwnCall": "a __call__ of its own",
    "OtherTensors": "the parameter a.weight, a ",
    "Checkpointed": "the function CheckpointFunction of Checkpointed",
    "checkpointed_in_part": "CheckpointFunction",
    "Counting": "count, which Counting changes",
    "Logging": "log, which Logging changes",
    "Remembering": "SEEN, which Remembering changes",
    "CentredInPlace": "part and mean, which share memory",
    "Scheduled": "the buffer signal of complex numbers",
    "cumulative_of_torch": "without momentum",
    "Clamped": "parameters that Clamped changes",
    "ViewOfAWeight": "part and b.weight, which share memory",
    "Fourier": "the parameter w of complex numbers",
    "Branching": "",
}
ANY_WAY = ("Two", "OwnLayer", "Frozen", "Trained", "Centred")  # a faster one may serve, if it gives the same
NOISE = ("PythonNoise", "NumpyNoise", "TorchNoise")
