"""Small problems on which classes are certified: quadratics and a network, in double precision, on every worker another
one, so that the order of operations matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dsgd.data.quadratic import Quadratic
from dsgd.streams import seeded_streams, stream

SEED, BATCH = 7, 6
QUADRATIC = Quadratic(dim=35, curvature_spread=0.3)
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


class SplitVector(nn.Module):
    """Multiply inputs by one vector of parameters, which is split into a vector and a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(5, dtype=torch.float64))
        self.matrix = nn.Parameter(torch.zeros(6, 5, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * torch.cat((self.vector, self.matrix.flatten()))


def network() -> nn.Module:
    """Return a network with buffers, the statistics of batch norm."""
    with seeded_streams(SEED):
        # without a bias before batch norm: its gradient is a rounding error, which AdamW makes a step of
        layers = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
    return layers.double()


@dataclass(frozen=True)
class SmallProblem:
    """A model, a local optimizer and batches for some workers. title: name in the output."""

    title: str
    nodes: int
    model: Callable[[], nn.Module]
    optimizer: MakeOptimizer
    steps: int = 24

    def loss(self, model: nn.Module, rank: int, step: int) -> Tensor:
        """Compute the loss of a worker's batch. Its expectation differs from worker to worker."""
        inputs, targets = self._quadratic(rank, step) if self.model is SplitVector else _samples(rank, step)
        return 0.5 * (model(inputs) - targets).square().sum(1).mean()

    def _quadratic(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Return the batch that makes `h (x - c) + noise` the gradient."""
        h = QUADRATIC.curvatures(self.nodes, SEED)[rank]
        c = QUADRATIC.targets(self.nodes, SEED)[1][rank]
        noise = QUADRATIC.gradient_noise(SEED, rank, step)
        root = h**0.5
        return torch.from_numpy(root)[None], torch.from_numpy(root * c - noise / root)[None]


def _samples(rank: int, step: int) -> tuple[Tensor, Tensor]:
    rng = stream("certificate batch", SEED, rank, step)
    inputs, targets = rng.standard_normal((BATCH, 6)) + 0.5 * rank, rng.standard_normal((BATCH, 4)) - 0.2 * rank
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def sgd(lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> MakeOptimizer:
    """Return the maker of torch's SGD. Weights and biases are two groups; only weights decay."""

    def optimizer(module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(_groups(module, weight_decay), lr=lr, momentum=momentum)

    return optimizer


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(_groups(module, 0.1), lr=0.02)


def _groups(module: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    matrices = [parameter for parameter in module.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in module.parameters() if parameter.ndim < 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


PROBLEMS = (
    SmallProblem("quadratics, 2 workers, SGD", 2, SplitVector, sgd(0.1)),
    SmallProblem("quadratics, 3 workers, SGD with momentum and decay", 3, SplitVector, sgd(0.05, 0.9, 0.1)),
    SmallProblem("network, 4 workers, SGD with momentum and decay", 4, network, sgd(0.05, 0.9, 0.1)),
    SmallProblem("network, 2 workers, AdamW", 2, network, adamw),
)
