"""Small modules of blocks of many kinds: tensors that lie in memory in many ways, are shared, or have many dtypes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 12
ONE_AT_A_TIME = threading.Lock()  # torch's seed and default dtype are of the whole process


class Matrix(nn.Module):
    """Multiply by a parameter, which may lie in memory in any way."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight)


class Two(nn.Module):
    """Two layers with something in common: the parameter, or its memory."""

    def __init__(self, is_parameter: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        if is_parameter:
            self.second.weight = self.first.weight
        else:
            self.second.weight.data = self.first.weight.data

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Slices(nn.Module):
    """Two parameters that are parts of one storage."""

    def __init__(self) -> None:
        super().__init__()
        memory = torch.randn(2 * WIDTH, WIDTH) / 4
        self.first, self.second = nn.Parameter(memory[:WIDTH]), nn.Parameter(memory[WIDTH:])

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.first) @ self.second


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 2, padding=1).to(memory_format=torch.channels_last)  # pyright: ignore

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.view(-1, 3, 2, 2))[:, :, :2, :2].flatten(1)


class Numbers(nn.Module):
    """Parameters of no axis and of no number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.empty = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.empty.sum()


class OtherDtype(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.to(self.layer.weight.dtype)).to(x.dtype)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.ones(WIDTH, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.phase).real.to(x.dtype)


class Buffers(nn.Module):
    """Buffers of many dtypes, of which two change in each call; one has gaps in memory."""

    shift: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        for dtype in (torch.int16, torch.uint16, torch.bool, torch.float16, torch.float8_e4m3fn):
            self.register_buffer(str(dtype).partition(".")[2], torch.randn(3).abs().to(dtype))
        self.register_buffer("shift", torch.randn(WIDTH, 2)[:, 0])
        self.register_buffer("calls", torch.zeros((), dtype=torch.int16))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.calls.add_(1)
            self.shift.add_(0.1 * x.detach().mean(dim=0))
        return x + self.shift


class Partly(nn.Module):
    """A layer that is used in some turns, set from outside, and one that never is."""

    def __init__(self) -> None:
        super().__init__()
        self.sometimes, self.never = nn.Linear(WIDTH, WIDTH), nn.Linear(2, 2)
        self.is_turn = True

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.sometimes(x)) if self.is_turn else x


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table((x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long())


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


def normalized() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "gaps": lambda: Matrix(torch.randn(WIDTH, 2 * WIDTH)[:, ::2] / 4),
    "transposed": lambda: Matrix(torch.randn(WIDTH, WIDTH).t() / 4),
    "block of rows": lambda: Matrix(torch.randn(2 * WIDTH, 2 * WIDTH)[3 : 3 + WIDTH, 5 : 5 + WIDTH] / 4),
    "tied": lambda: Two(is_parameter=True),
    "shared memory": lambda: Two(is_parameter=False),
    "slices": Slices,
    "channels last": Image,
    "numbers": Numbers,
    "double": lambda: OtherDtype(torch.float64),
    "bfloat16": lambda: OtherDtype(torch.bfloat16),
    "complex": Complex,
    "buffers": Buffers,
    "partly used": Partly,
    "lookup": Lookup,
    "frozen": Frozen,
    "weight norm": normalized,
}


class RandomModule(nn.Module):
    """Blocks one after the other. checkpoints: None, or whether those of the blocks are re-entrant."""

    def __init__(self, blocks: tuple[str, ...], seed: int, dtype: torch.dtype, checkpoints: bool | None) -> None:
        super().__init__()
        with ONE_AT_A_TIME:
            torch.manual_seed(seed)
            usual = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            self.blocks = nn.ModuleList(BLOCKS[name]() for name in blocks)
            torch.set_default_dtype(usual)
        self.checkpoints = checkpoints

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpoints is not None:
            x = x.clone().requires_grad_()
        for block in self.blocks:
            x = block(x) if self.checkpoints is None else checkpoint(block, x, use_reentrant=self.checkpoints)
        return x

    def take_turn(self, is_turn: bool) -> None:
        for block in self.blocks:
            if isinstance(block, Partly):
                block.is_turn = is_turn
