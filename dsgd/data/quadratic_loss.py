"""Compute the quadratics of dsgd.data.quadratic with torch: the loaded form of the data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor


class QuadraticData:
    """A sample is a worker: inputs [b, dim] are zeros, ignored by the model; targets [b, 2, dim] are (c_i, noise), or
    (c_i, noise, h_i), [b, 3, dim], where workers have curvatures of their own."""

    def __init__(
        self,
        curvature: np.ndarray,
        targets: tuple[np.ndarray, np.ndarray],
        gradient_noise: Callable[[int, int], np.ndarray],
        dtype: torch.dtype,
        curvatures: np.ndarray | None = None,
    ) -> None:
        """curvature: [dim]. targets: common [dim], own [nodes, dim]. gradient_noise: [dim], of (rank, step).

        curvatures: of each worker, [nodes, dim]; None: all have `curvature`, their mean."""
        common, per_worker = targets
        self.samples = len(per_worker)
        self.classes: int | None = None
        self.input_shape: tuple[int, ...] = curvature.shape
        self._curvature = torch.from_numpy(curvature).to(dtype)
        self._gradient_noise = gradient_noise
        self.train_set = _without_noise(per_worker, curvatures, dtype)
        self.test_set = _without_noise(common[None], None, dtype)

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs [1, dim] and targets [1, 2 or 3, dim] of worker `rank` at its own step `step`."""
        inputs, targets = self.train_set
        targets = targets[rank : rank + 1].clone()
        targets[0, 1] = torch.from_numpy(self._gradient_noise(rank, step))
        return inputs[rank : rank + 1], targets

    def batches(self, ranks: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return inputs [n, 1, dim] and targets [n, 1, 2 or 3, dim]; row i is `batch(ranks[i], steps[i])`."""
        inputs, targets = (whole[list(ranks)].unsqueeze(1) for whole in self.train_set)
        noise = [self._gradient_noise(rank, step) for rank, step in zip(ranks, steps, strict=True)]
        targets[:, 0, 1] = torch.from_numpy(np.stack(noise))
        return inputs, targets

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over b of 0.5 sum_j h_j (x_j - c_j)^2 + sum_j n_j x_j, a scalar.

        outputs: x, [b, dim]. targets: c and n, [b, 2, dim], or c, n and h, [b, 3, dim]."""
        return self.losses(outputs, targets).mean()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample [b], of which `loss` is the mean."""
        minimum, noise, *curvatures = targets.unbind(dim=-2)
        curvature = curvatures[0] if curvatures else self._curvature.to(outputs.device)
        curved = 0.5 * curvature * (outputs - minimum) ** 2
        return (curved + noise * outputs).sum(dim=-1)


def _without_noise(minima: np.ndarray, curvatures: np.ndarray | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return inputs [n, dim] and targets [n, 2 or 3, dim]. minima: [n, dim]. curvatures: [n, dim], of workers."""
    rows = [torch.from_numpy(minima).to(dtype), torch.zeros(minima.shape, dtype=dtype)]
    if curvatures is not None:
        rows.append(torch.from_numpy(curvatures).to(dtype))
    return rows[1], torch.stack(rows, dim=1)
