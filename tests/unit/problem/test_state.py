"""What a module's tensors must be, and what becomes of them in the vectors; each refusal is one line."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dsgd.problem.slots import ModelFailed
from tests.support.each_row import each_row
from tests.support.networks import problem_of
from tests.support.own_modules import Scheduled, Two, ViewOfAWeight


class Growing(Two):
    """A buffer that each pass makes longer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.seen: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.seen = torch.cat((self.seen, torch.ones(1)))
        return super().forward(x)


class Replacing(Two):
    def forward(self, x: Tensor) -> Tensor:
        self.b.weight = nn.Parameter(self.b.weight.detach() * 0.5)
        return super().forward(x)


class Teaching(Two):
    """A fixed parameter that follows a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Parameter(self.b.weight.detach().clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.teacher.lerp_(self.b.weight, 0.1)
        return super().forward(x)


class Parting(Two):
    """Two buffers that are one, until one of them is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.zeros(3))
        self.register_buffer("second", self.first)
        self.first: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.first = self.first + 1
        return super().forward(x)


class Several(Two):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return (y, y) if self.training else y  # pyright: ignore[reportReturnType]


@each_row(
    ("kind", "text"),
    [
        (Growing, "the model's seen must be the same parameter, or a buffer of the same shape and type"),
        (Replacing, "the model's b.weight must be the same parameter"),
        (Teaching, "the model's teacher must be a buffer, not a fixed parameter, to change in training"),
        (Parting, "the model's buffers Parting.first and Parting.second must stay one tensor; change it in place"),
        (Several, "the model must give one tensor in training, got tuple of Several"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_one_line(kind: type[nn.Module], text: str) -> None:
    of = problem_of(kind())
    with pytest.raises(ModelFailed, match=f"^{text}") as failed:
        of.gradient(of.start.clone(), of.start_buffers.clone(), 0, 0)
    assert "\n" not in str(failed.value)


def overlapping() -> nn.Module:
    module = Two()
    module.b.bias.data = module.a.bias.data[:10]
    return module


@each_row(
    ("make", "text"),
    [
        (overlapping, "the model's a.bias and b.bias must each have memory of its own, or be one parameter"),
        (lambda: nn.LazyLinear(10), "the model's weight must have values, got a tensor that no forward pass has given"),
        (
            lambda: nn.Linear(64, 10, device="meta"),
            "the model's weight must have values, got a tensor on the meta device",
        ),
    ],
)
def test_parameters_without_values_of_their_own_are_refused(make: object, text: str) -> None:
    with pytest.raises(ModelFailed, match=f"^{text}"):
        problem_of(make())  # pyright: ignore[reportCallIssue]


def test_a_view_of_a_parameter_stays_one_or_is_refused() -> None:
    with pytest.raises(ModelFailed, match=r"^precision must keep part and b\.weight, which share memory, as they are"):
        problem_of(ViewOfAWeight(), "precision=fp64")


def test_buffers_of_all_types_come_back_as_they_went_into_the_vector() -> None:
    """Whole numbers of 64 bits too, which are no numbers of 32 bits with a point."""
    of = problem_of(Scheduled())
    x, first = of.start.clone(), of.start_buffers.clone()
    second = first.clone()
    of.gradient(x, second, 0, 0)
    assert not torch.equal(first, second)
    for buffers, steps in ((first, 2**40 + 1), (second, 2**40 + 2), (first, 2**40 + 1)):
        of.state.bind(x, buffers)
        module = of.module
        assert isinstance(module, Scheduled)
        assert int(module.steps) == steps
        assert module.small.tolist() == [1, -2, 3]
        assert module.used.dtype == torch.bool
        assert bool(module.used.any()) == (buffers is second) or not module.used.any()
        assert module.signal.tolist() == [1 if buffers is first else 1j] * 3
        again = buffers.clone()
        of.state.keep(x.clone(), again)
        assert torch.equal(again, buffers)


def test_the_mean_of_counters_is_that_of_the_first_worker() -> None:
    of = problem_of(Scheduled())
    both = [of.start_buffers.clone() for _ in range(2)]
    of.gradient(of.start.clone(), both[1], 0, 0)
    mean, numbers = of.state.mean(both), of.state.numbers
    assert torch.equal(mean[numbers:], both[0][numbers:])
    assert torch.equal(mean[:numbers], (both[0][:numbers] + both[1][:numbers]) / 2)
