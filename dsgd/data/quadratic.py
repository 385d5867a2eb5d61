"""Noisy quadratics with known minima: a data set with a closed form for every algorithm.

    rng = numpy.random.default_rng(seed)
    c   = rng.standard_normal(dim)                      common target
    z   = rng.standard_normal((nodes, dim)), minus its mean over the workers, weighted by h_i
    c_i = c + spread * z_i                              worker i's minimum
    h_j = condition ** (-j / (dim - 1))                 mean curvature of coordinate j = 0 .. dim - 1
    h_ij = h_j * exp(curvature_spread * m_ij)           worker i's curvature, m standard normal,
                                                        scaled so that h_j is its mean over the workers
    f_i(x) = 0.5 * sum over j of h_ij (x_j - c_ij)^2    worker i's loss
    g_i(x) = h_i (x - c_i) + noise * n                  its gradient, n standard normal, new in every step

So mean_i f_i(x) = 0.5 * sum over j of h_j (x_j - c_j)^2 + a constant, for any curvature_spread. Its minimum is c, in
every coordinate sum_i h_i c_i / sum_i h_i, and the loss of the test set is the excess over the minimum. With
curvature_spread=0 all h_i are h, and the mean of the c_i is c.

The noise is a term n x of a batch's loss, so that automatic differentiation yields g_i; the losses of `train_set` and
`test_set` do not have it. Model: model=vector. One epoch is one gradient of every worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dsgd.keys import check_options
from dsgd.streams import stream

MOST_PARAMETERS = 10**9  # of one worker: 4 GB
LARGEST = 1e15  # of numbers whose squares are summed in 32 bits
LARGEST_CONDITION = 1e300  # whose inverse is no zero

if TYPE_CHECKING:
    import torch

    from dsgd.data.in_memory import QuadraticData


@dataclass(frozen=True)
class Quadratic:
    """One quadratic per worker, minima apart by `spread`, gradients with additive noise."""

    dim: int = 20  # parameters
    condition: float = 10.0  # largest over smallest curvature; the largest is 1
    spread: float = 1.0  # standard deviation of the workers' minima around their mean; 0: the same data everywhere
    noise: float = 0.1  # standard deviation of the gradient noise, each coordinate
    curvature_spread: float = 0.0  # standard deviation of the logarithm of the workers' curvatures; 0: all have h

    def __post_init__(self) -> None:
        check_options(self, dim=f"in [1, {MOST_PARAMETERS}]", condition=f"in [1, {LARGEST_CONDITION:g}]")
        check_options(self, **dict.fromkeys(("spread", "noise", "curvature_spread"), f"in [0, {LARGEST:g}]"))

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.dim,)

    @property
    def classes(self) -> None:
        return None

    def train_samples(self, nodes: int) -> int:
        return nodes

    def check(self, nodes: int, batch_size: int) -> None:
        if nodes < 1:
            raise ValueError(f"nodes must be >= 1, got {nodes}")
        if batch_size != 1:
            raise ValueError(f"batch_size must be 1 with data=quadratic, got {batch_size}")

    def curvature(self) -> np.ndarray:
        """Return h, [dim], float64, from 1 down to 1 / condition."""
        return self.condition ** (-np.arange(self.dim) / max(self.dim - 1, 1))

    def curvatures(self, nodes: int, seed: int) -> np.ndarray:
        """Return the workers' curvatures h_i, [nodes, dim], float64, whose mean over the workers is h."""
        m = stream("quadratic curvature", seed).standard_normal((nodes, self.dim))
        factors = np.exp(self.curvature_spread * (m - m.max(axis=0)))  # at most 1: the quotient is the same
        return self.curvature() * factors / factors.mean(axis=0)

    def targets(self, nodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the common target c [dim] and the workers' minima c_i [nodes, dim], float64."""
        rng = np.random.default_rng(seed)
        c = rng.standard_normal(self.dim)
        z = rng.standard_normal((nodes, self.dim))
        z -= np.average(z, axis=0, weights=self.curvatures(nodes, seed)) if self.curvature_spread else z.mean(axis=0)
        return c, c + self.spread * z

    def gradient_noise(self, seed: int, rank: int, step: int) -> np.ndarray:
        """Return the noise in the gradient of worker `rank` at its own step `step`: [dim], float64."""
        return self.noise * stream("quadratic noise", seed, rank, step).standard_normal(self.dim)

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> QuadraticData:
        from dsgd.data.in_memory import QuadraticData

        self.check(nodes, batch_size)
        noise = partial(self.gradient_noise, seed)
        curvatures = self.curvatures(nodes, seed) if self.curvature_spread else None
        return QuadraticData(self.curvature(), self.targets(nodes, seed), noise, dtype, curvatures)
