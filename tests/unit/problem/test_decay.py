"""Which parameters `optimizer.decay_norm_and_bias=false` leaves out of the weight decay."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from dsgd.data import Data
from dsgd.problem.problem import Problem
from tests.support.simulate import experiment


class ChannelNorm(nn.Module):
    """A norm of the user's, whose scale has axes for broadcasting."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, 1, 1))


class NormalisedLinear(nn.Module):
    """No norm, whatever its name says: it multiplies by a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.ones(3, 4))


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, bidirectional=True, proj_size=2)
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
        self.layer_norm, self.rms_norm = nn.LayerNorm([3, 4]), nn.RMSNorm([3, 4])
        self.batch_norm, self.group_norm = nn.BatchNorm2d(3), nn.GroupNorm(1, 3)
        self.instance_norm, self.prelu = nn.InstanceNorm1d(3, affine=True), nn.PReLU()
        self.own_norm, self.no_norm = ChannelNorm(), NormalisedLinear()
        self.biases = nn.ParameterList([torch.zeros(1, 4)])
        self.named = nn.ParameterDict({"position_bias_table": torch.zeros(3, 4), "table": torch.zeros(3, 4)})
        self.bias_maker = nn.Linear(4, 1)  # its weight is one: it is the layer that is named so
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.phases = nn.Parameter(torch.ones(5, dtype=torch.complex64))  # pairs of real numbers in the vector
        self.parametrized = parametrizations.weight_norm(nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x


DECAYED = {
    *(f"lstm.weight_{kind}_l0{way}" for kind in ("ih", "hh", "hr") for way in ("", "_reverse")),
    *("attention.in_proj_weight", "attention.out_proj.weight", "no_norm.matrix", "named.table", "bias_maker.weight"),
    *(f"parametrized.parametrizations.weight.original{number}" for number in (0, 1)),
}


def test_biases_norms_and_single_numbers_are_left_out_of_the_decay_whatever_owns_them() -> None:
    data: Data = experiment("nodes=2").data.load(2, 5, 0, torch.float32)
    problem = Problem(Everything(), data, torch.float32, 0.1, decay_norm_and_bias=False)
    assert problem.decay_mask is not None
    decayed = {slot.path for slot in problem.parameters if bool(slot.view(problem.decay_mask).any())}
    assert decayed == DECAYED
    for slot in problem.parameters:
        assert bool(slot.view(problem.decay_mask).all()) == (slot.path in DECAYED)
