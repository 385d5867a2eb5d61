"""Networks that the package does not know: hand-written ones, and random ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import strategies as st
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


class Residual(nn.Module):
    """What people write: in-place activations, additions in place, a method of the tensor here and a function there."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.convs = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1, groups=groups) for groups in (1, 2, 3))
        self.norm = nn.BatchNorm2d(6, momentum=0.3)
        self.scale = nn.Parameter(torch.full((6, 1, 1), 0.5))
        self.hidden = nn.Linear(6 * 4 * 4, 12)
        self.norm1d = nn.BatchNorm1d(12)
        self.linear = nn.Linear(12, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.stem(x), 2)
        for conv in self.convs:
            y = self.norm(conv(x))  # one norm, called three times
            y += x * self.scale
            x = F.relu(y, inplace=True)
        x = x.view(x.size(0), -1)
        return self.linear(torch.tanh(self.norm1d(self.hidden(x))))


class Tied(nn.Module):
    """Two layers with one weight, a layer that is called twice, a fixed parameter, and one that nothing needs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 7)
        self.fixed = nn.Linear(7, 7)
        self.fixed.weight.requires_grad_(False)
        self.one, self.other = nn.Linear(7, 7), nn.Linear(7, 7)
        self.other.weight = self.one.weight
        self.last = nn.Linear(7, CLASSES)
        self.idle = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1)).relu()
        x = self.other(torch.sigmoid(self.one(x))) + self.one(self.fixed(x))
        return self.last(x - 0.5)


class Means(nn.Module):
    """Pooling by means, adaptive pooling, slices and padding."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False)
        self.pool, self.gelu = nn.AdaptiveAvgPool2d(2), nn.GELU()
        self.norm, self.linear = nn.GroupNorm(2, 4), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.gelu(self.norm(self.conv(x))), inplace=True)
        x = F.avg_pool2d(F.pad(x[:, :, ::2, ::2], (1, 1, 1, 1, 0, 2)), 2) * 2
        return self.linear(self.pool(x).mean(dim=(2, 3)) + x.mean((-1, -2), keepdim=True).squeeze())


class Dwindling(nn.Module):
    """Images of few pixels, whose convolutions are unfolded, between other layers of images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, stride=4, padding=1)
        self.first, self.norm1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.second, self.norm2 = nn.Conv2d(4, 4, (1, 3), padding=(0, 1), dilation=1), nn.GroupNorm(2, 4)
        self.grouped = nn.Conv2d(4, 6, 3, padding="same", groups=2)
        self.third, self.linear = nn.Conv2d(6, 5, 2, stride=2), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x), inplace=True)
        y = F.relu(self.norm1(self.first(x)), inplace=True)
        x = self.norm2(self.second(y) + x[:, :, :2, :2])
        x = F.pad(self.grouped(x * 0.5), (0, 2, 1, 1))
        return self.linear(torch.tanh(self.third(F.max_pool2d(x, 2))).flatten(1))


class Attending(nn.Module):
    """The rows of an image as tokens: attention of two heads that sees all of them, and norms of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(8, 12)
        self.stem, self.norm = nn.Linear(8, 12), nn.LayerNorm([8, 12], bias=False)
        self.query, self.both = nn.Linear(12, 12, bias=False), nn.Linear(12, 24)
        self.inner, self.last = nn.LayerNorm(12), nn.LayerNorm(12, elementwise_affine=False)
        self.linear = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x.view(-1, 8, 8)) + self.places.weight)
        q, both = self.query(x), self.both(self.inner(x))
        q, k, v = (y.view(-1, 8, 2, 6).transpose(1, 2) for y in (q, both[:, :, :12], both[:, :, 12:]))
        y = F.scaled_dot_product_attention(q, k, v, scale=0.3)
        return self.linear(self.last(x + torch.transpose(y, 2, 1).flatten(2)).mean(dim=1))


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


class Mixing(nn.Module):
    """Samples see each other outside of batch norm, by operations that are known."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.linear(x - x.mean(0))


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, CLASSES)
        self.linear.register_forward_hook(lambda module, inputs, output: torch.mul(output, 2))  # pyright: ignore[reportArgumentType]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


KNOWN: dict[str, Callable[[], nn.Module]] = {
    "residual": Residual,
    "tied": Tied,
    "means": Means,
    "dwindling": Dwindling,
    "attending": Attending,
}


@st.composite
def modules(draw: st.DrawFn) -> nn.Module:
    """Convolutions with whatever stands around them, then linear layers."""
    layers: list[nn.Module] = []
    channels, side = 1, 8
    for _ in range(draw(st.integers(0, 3))):
        groups = draw(st.sampled_from([1, 1, channels]))
        outputs = groups * draw(st.integers(1, 5))
        kernel, stride = draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 1, 2]))
        layers.append(
            nn.Conv2d(channels, outputs, kernel, stride, kernel // 2, groups=groups, bias=draw(st.booleans()))
        )
        channels, side = outputs, -(-side // stride)
        if draw(st.booleans()):
            affine, tracks = draw(st.booleans()), draw(st.booleans())
            layers.append(nn.BatchNorm2d(channels, EPS, affine=affine, track_running_stats=tracks))
        layers.append(draw(activations()))
        if side > 1 and draw(st.booleans()):
            layers.append(draw(st.sampled_from([nn.MaxPool2d(2), nn.AvgPool2d(2)])))
            side //= 2
    layers.append(nn.Flatten())
    width = channels * side**2
    for _ in range(draw(st.integers(0, 2))):
        outputs = draw(st.integers(1, 20))
        layers += [nn.Linear(width, outputs, bias=draw(st.booleans())), draw(activations())]
        width = outputs
        if draw(st.booleans()):
            layers.append(nn.BatchNorm1d(width, EPS))
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def activations() -> st.SearchStrategy[nn.Module]:
    # a rectifier has no slope at 0, where rounding decides: the smooth ones can be compared more closely
    return st.builds(lambda kind: kind(), st.sampled_from([nn.Tanh, nn.Sigmoid, nn.GELU, nn.ReLU, nn.Identity]))
