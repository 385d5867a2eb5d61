"""Update matrices by Muon, and all other parameters by AdamW.

Reference: Jordan et al. 2024 (kellerjordan.github.io/posts/muon). Liu et al. 2025, arXiv 2502.16982, for the scale that
lets one rate serve both. Within algo=diloco it is MuLoCo: Therien et al. 2025, arXiv 2505.23725.

    each step of a matrix X [n, m] with gradient G:        B  momentum, zero before the first step
        B = mu B + (1 - mu) G                              mu momentum
        N = mu B + (1 - mu) G, with nesterov; else B
        X = (1 - lr decay) X - 0.2 sqrt(max(n, m)) lr O(N)

O(N) has the singular vectors of N, and singular values near 1: five steps of a Newton-Schulz iteration, which maps a
singular value s of N / |N| to a s + b s^3 + c s^5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING

from dsgd.keys import check_options
from dsgd.optim.optimizer import AdamW, Matrix, State

if TYPE_CHECKING:
    from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # a, b, c: Jordan et al.
STEPS = 5
SMALLEST = 1e-7  # norm that a matrix is divided by
SCALE = 0.2  # of a step's entries, root mean square: as large as AdamW's (Liu et al., equation 4)


@dataclass(frozen=True)
class Muon:
    """Muon for matrices and AdamW for vectors and embeddings, with one rate and one decoupled weight decay."""

    lr: float = 1e-3
    momentum: float = 0.95
    nesterov: bool = True
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        self._vectors  # noqa: B018  its checks
        check_options(self, momentum="in [0, 1)")

    @cached_property
    def _vectors(self) -> AdamW:
        return AdamW(self.lr, self.betas, self.eps, self.weight_decay)

    @property
    def gradient_decay(self) -> float:
        return 0.0

    @property
    def decay_norm_and_bias(self) -> bool:
        return True

    @property
    def remembers(self) -> tuple[str, ...]:
        """Return AdamW's names: the momentum of matrices is in their part of the first moment; the second is zero
        there."""
        return self._vectors.remembers

    def step(self, x: Tensor, g: Tensor, state: State | None, lr: float, matrices: Sequence[Matrix] = ()) -> State:
        """Update x [d] in place with the gradient g [d]."""
        state, m, v = self._vectors.begun(state, g)
        for matrix in matrices:
            at = matrix.slice
            momentum = m[at].lerp_(g[at], 1 - self.momentum)
            N = g[at].lerp(momentum, self.momentum) if self.nesterov else momentum
            direction = orthogonal(N.view(matrix.rows, matrix.columns)).flatten()
            x[at].mul_(1 - lr * self.weight_decay)
            x[at].add_(direction, alpha=-lr * SCALE * sqrt(max(matrix.rows, matrix.columns)))
        for at in _between(matrices):
            self._vectors.move(x[at], g[at], m[at], v[at], state.steps, lr)
        return state


def orthogonal(N: Tensor) -> Tensor:
    """Return a matrix [n, m] with the singular vectors of N [n, m] and singular values near 1, in the type of N."""
    a, b, c = COEFFICIENTS
    X = N.T if N.shape[0] > N.shape[1] else N
    X = X / X.norm().clamp(min=SMALLEST)
    for _ in range(STEPS):
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X.T if N.shape[0] > N.shape[1] else X


def _between(matrices: Sequence[Matrix]) -> Iterator[slice]:
    """Yield the ranges of a flat vector that belong to no matrix."""
    begin = 0
    for matrix in matrices:
        if matrix.start > begin:
            yield slice(begin, matrix.start)
        begin = matrix.slice.stop
    yield slice(begin, None)
