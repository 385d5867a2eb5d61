"""Update parameters on a worker: SGD and AdamW on a flat vector, in the form of torch.optim. Muon is in muon.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, NamedTuple, Protocol

from dsgd.keys import Key, check_options
from dsgd.optim.fused import move_by_torch, sgd_kernel

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 1e30  # of a rate: products of it with others are still floats of 32 bits
RATES = f"in [0, {LARGEST:g}]"
RATE, DECAY = Key("lr {:g}", RATES, axis="learning rate"), Key("weight decay {:g}", RATES)


@dataclass(slots=True)
class State:
    """The vectors that a worker's optimiser remembers, [d] each, by name, changed in place.

    steps: made since the vectors were zero; fewer than the worker's if a replacement of it began with fresh ones."""

    vectors: dict[str, Tensor]
    steps: int = 0


class Matrix(NamedTuple):
    """Locate a matrix [rows, columns] of parameters in the flat vector."""

    start: int
    rows: int
    columns: int

    @property
    def slice(self) -> slice:
        return slice(self.start, self.start + self.rows * self.columns)


def state_vectors(state: State | None) -> list[Tensor]:
    """Return the vectors of a state, in the same order in every worker; empty before the first step."""
    return [] if state is None else [state.vectors[name] for name in sorted(state.vectors)]


class Optimizer(Protocol):
    """`optimizer.*`, and the update that it describes."""

    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float:
        """Return the momentum of SGD, for algorithms with their own momentum."""
        ...

    @property
    def gradient_decay(self) -> float:
        """Return the weight decay that is part of the gradient."""
        ...

    @property
    def decay_norm_and_bias(self) -> bool:
        """Return whether `gradient_decay` also acts on normalisation parameters and biases."""
        ...

    @property
    def remembers(self) -> tuple[str, ...]:
        """Return the names of the vectors in `State.vectors`."""
        ...

    def step(
        self, x: Tensor, g: Tensor, state: State | None, lr: float, matrices: Sequence[Matrix] = ()
    ) -> State | None:
        """Update x [d] in place with the gradient g [d] (read only). Returns the state for the next step; None, as
        before the first step, for an optimizer without state. matrices: the matrices in x, in order, for Muon."""
        ...


@dataclass(frozen=True)
class SGD:
    """SGD with momentum; weight decay is part of the gradient."""

    lr: Annotated[float, RATE] = 0.1
    momentum: Annotated[float, Key("momentum {:g}", "in [0, 1)")] = 0.0
    nesterov: Annotated[bool, Key("Nesterov")] = False
    weight_decay: Annotated[float, DECAY] = 0.0  # added to the gradient where it is taken
    decay_norm_and_bias: Annotated[bool, Key("none of norms and biases")] = True

    def __post_init__(self) -> None:
        check_options(self)
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov must be false when optimizer.momentum is 0, got true")

    @property
    def gradient_decay(self) -> float:
        return self.weight_decay

    @property
    def remembers(self) -> tuple[str, ...]:
        return ("velocity",)

    def step(
        self, x: Tensor, g: Tensor, state: State | None, lr: float, matrices: Sequence[Matrix] = ()
    ) -> State | None:
        """Update x: v = mu v + g; x = x - lr v, or with Nesterov x = x - lr (g + mu v)."""
        if self.momentum == 0:
            x.add_(g, alpha=-lr)
            return None
        by_g, by_v = (-lr, -lr * self.momentum) if self.nesterov else (0.0, -lr)
        if state is None:  # v = g
            state = State({"velocity": g.clone()}, steps=1)
            if by_g:
                x.add_(g, alpha=by_g)
            x.add_(g, alpha=by_v)
            return state
        state.steps += 1
        velocity = state.vectors["velocity"]
        (sgd_kernel(x, g, velocity) or move_by_torch)(x, g, velocity, self.momentum, by_g, by_v)
        return state


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay, Loshchilov and Hutter 2019, arXiv 1711.05101, Algorithm 2; lr multiplies the
    decay too."""

    lr: Annotated[float, RATE] = 1e-3
    betas: Annotated[list[float], Key("betas {}")] = field(default_factory=lambda: [0.9, 0.999])
    eps: Annotated[float, Key("eps {:g}", f"in (0, {LARGEST:g}]")] = 1e-8
    weight_decay: Annotated[float, DECAY] = 0.01

    def __post_init__(self) -> None:
        check_options(self)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")

    @property
    def momentum(self) -> float:
        return 0.0

    @property
    def gradient_decay(self) -> float:
        return 0.0

    @property
    def decay_norm_and_bias(self) -> bool:
        return True

    @property
    def remembers(self) -> tuple[str, ...]:
        return ("first_moment", "second_moment")

    def step(self, x: Tensor, g: Tensor, state: State | None, lr: float, matrices: Sequence[Matrix] = ()) -> State:
        """Update x; t is the step of this state."""
        state, m, v = self.begun(state, g)
        self.move(x, g, m, v, state.steps, lr)
        return state

    def begun(self, state: State | None, g: Tensor) -> tuple[State, Tensor, Tensor]:
        """Return the state of one more step and its two moments [d], which are zero before the first step."""
        if state is None:
            state = State({name: g.new_zeros(g.shape) for name in self.remembers})
        state.steps += 1
        m, v = (state.vectors[name] for name in self.remembers)
        return state, m, v

    def move(self, x: Tensor, g: Tensor, m: Tensor, v: Tensor, t: int, lr: float) -> None:
        """Update x and its moments: m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
        x = (1 - lr decay) x - lr m' / (sqrt(v') + eps), with m' = m / (1 - b1^t), v' = v / (1 - b2^t)."""
        beta1, beta2 = self.betas
        x.mul_(1 - lr * self.weight_decay)
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        # one vector for a moment, rather than one more kept by every worker
        denominator = v.sqrt().div_((1 - beta2**t) ** 0.5).add_(self.eps)
        x.addcdiv_(m, denominator, value=-lr / (1 - beta1**t))
