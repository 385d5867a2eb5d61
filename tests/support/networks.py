"""Networks that the package does not know: hand-written ones, and random ones."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from dsgd.problem.problem import Problem, build_problem
from tests.support.simulate import experiment

CLASSES = 10
EPS = 0.01  # of random norms: over nearly equal numbers a norm multiplies what rounding does by up to 1 / sqrt(eps)


def problem_of(module: nn.Module, *overrides: str) -> Problem:
    """A module on the digits: images [b, 1, 8, 8], 10 classes."""
    whole = build_problem(experiment("nodes=3", "batch_size=5", *overrides))
    return Problem(
        module, whole.data, whole.dtype, whole.weight_decay, decay_norm_and_bias=True, autocast=whole.autocast
    )


def dropping(share: float = 0.5) -> nn.Module:
    """A network that forgets at random, by a module and by a function."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.Dropout(share), nn.ReLU(), Forgetful(), nn.Linear(16, CLASSES)
    )


class Forgetful(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.3, self.training)


class Normed(nn.Module):
    """With a layer that no kernel knows."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.RMSNorm(8), nn.Linear(8, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Branching(Normed):
    """What to do depends on the numbers: neither traced nor transformed."""

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) if x.sum() > 0 else -self.body(x)
