"""Compiled kernels: the numbers of the module itself, to rounding, whatever is computed beside them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from dsgd.gradients import compiled
from dsgd.gradients.choice import choose_evaluator
from dsgd.gradients.compiled import CompiledEvaluator
from dsgd.gradients.program import network_program
from dsgd.gradients.tracing import Untranslatable
from dsgd.host import kernels
from dsgd.problem.problem import Problem, build_problem
from tests.support.each_row import each_row
from tests.support.kernels import require_kernels
from tests.support.networks import CLASSES, EPS, Branching, Normed, problem_of
from tests.support.simulate import experiment
from tests.unit.gradients.test_evaluators import EXACT, assert_close, evaluate, pending_gradients

DOUBLE = "precision=fp64"


@pytest.fixture(autouse=True)
def _kernels(request: pytest.FixtureRequest) -> None:
    if "without" not in request.node.name:
        require_kernels()


IN_PLACE = (nn.ReLU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.Mish, nn.SELU)
OTHERS = (nn.Tanh(), nn.Sigmoid(), nn.ELU(1.5), nn.LeakyReLU(0.3), nn.Softplus())


class Small(nn.Module):
    """What people write with the known layers: in place and not, padding and slices, a value read three times."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.wide = nn.Conv2d(6, 9, (1, 3), stride=(1, 2), padding=(0, 1), bias=False)
        self.dilated = nn.Conv2d(9, 9, 3, padding=2, dilation=2)
        self.group, self.pool = nn.GroupNorm(3, 9), nn.MaxPool2d(3, stride=2, padding=1)
        self.hidden, self.norm = nn.Linear(9 * 8, 11), nn.BatchNorm1d(11, affine=False)
        self.linear = nn.Linear(11, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.wide(self.stem(x))
        y = F.relu(self.group(self.dilated(x)))
        x = self.pool(torch.add(x, y).relu() + x) + F.max_pool2d(x, 2, ceil_mode=False)
        x = F.pad(x[:, 1:, :3], (0, 0, 1, 0, 0, 1))
        x = F.relu(self.norm(self.hidden(x.reshape(x.size(0), -1))), inplace=True)
        return self.linear(x)


@st.composite
def networks(draw: st.DrawFn) -> nn.Module:
    """Convolutions of all kinds, norms, rectifiers, pooling and shortcuts, then linear layers."""
    layers: list[nn.Module] = []
    channels, side = 1, 8
    for _ in range(draw(st.integers(0, 3))):
        groups, kernel = draw(st.sampled_from([1, 1, channels])), draw(st.sampled_from([1, 2, 3]))
        outputs = groups * draw(st.integers(1, max(1, 12 // groups)))
        stride, padding, dilation = draw(st.sampled_from([1, 1, 2])), draw(st.integers(0, 2)), draw(st.integers(1, 2))
        after = (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        if after < 1:
            continue
        bias = draw(st.booleans())
        layers.append(nn.Conv2d(channels, outputs, kernel, stride, padding, dilation, groups, bias))
        channels, side = outputs, after
        affine = draw(st.booleans())
        norms = [nn.Identity(), nn.BatchNorm2d(channels, EPS, affine=affine), nn.GroupNorm(1, channels, EPS, affine)]
        norms.append(nn.LayerNorm([channels, side, side], EPS, affine))
        if side > 1:
            norms.append(nn.InstanceNorm2d(channels, EPS, affine=affine))
        layers += [draw(st.sampled_from(norms)), draw(activations())]
        if draw(st.booleans()):
            layers.append(draw(st.sampled_from([Around, Gated]))(channels))
        if side > 1 and draw(st.booleans()):
            padding, counted = draw(st.integers(0, 1)), draw(st.booleans())
            pools = [nn.MaxPool2d(2), nn.AvgPool2d(2, 2, padding, count_include_pad=counted)]
            layers.append(draw(st.sampled_from(pools)))
            side = (side + 2 * (padding if layers[-1] is pools[1] else 0)) // 2
    left = draw(st.integers(1, side))
    pools = [nn.AdaptiveAvgPool2d(left), nn.AdaptiveMaxPool2d(left), nn.Identity()]
    layers += [draw(st.sampled_from(pools)), nn.Flatten()]
    width = channels * (side if isinstance(layers[-2], nn.Identity) else left) ** 2
    for _ in range(draw(st.integers(0, 2))):
        outputs = draw(st.integers(1, 20))
        layers += [nn.Linear(width, outputs, bias=draw(st.booleans())), draw(activations())]
        width = outputs
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def activations() -> st.SearchStrategy[nn.Module]:
    """Every activation that the kernels know, in place and not."""
    with_place = st.builds(lambda kind, inplace: kind(inplace=inplace), st.sampled_from(IN_PLACE), st.booleans())
    gelu = st.builds(nn.GELU, st.sampled_from(["none", "tanh"]))
    return st.one_of(with_place, gelu, st.sampled_from(OTHERS))


class Around(nn.Module):
    """A shortcut around a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


class Gated(nn.Module):
    """A residual branch under a gate for each channel, and a factor that is trained."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate, self.factor = nn.Linear(channels, channels), nn.Parameter(torch.full((channels, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x.mean((2, 3)))).unsqueeze(2)[:, :, :, None]
        return x - gate * x * self.factor


def problem_with(module: nn.Module, batch_size: int, *overrides: str) -> Problem:
    """A module, initialised anew from a fixed seed, on the digits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        for part in module.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()  # pyright: ignore[reportCallIssue]
        return problem_of(module, f"batch_size={batch_size}", *overrides)


def assert_agree(of: Problem, tolerance: float = EXACT) -> None:
    """Gradients, statistics and losses of the kernels and of the loop, in float64 to 1e-12 of the largest entry."""
    found, expected = pending_gradients(of, 3), pending_gradients(of, 3)
    evaluate("compiled", of, [found])
    evaluate("loop", of, [expected])
    for item, right in zip(found, expected, strict=True):
        for value, known in ((item.value, right.value), (item.buffers, right.buffers), (item.loss, right.loss)):
            assert value is not None
            assert known is not None
            assert_close(value, known, tolerance)


@each_row("batch_size", [2, 5, 8, 19])
def test_batches_of_any_size_have_the_gradients_of_the_loop(batch_size: int) -> None:
    """Lanes of a vector that are left over count nowhere, in batch norm neither."""
    assert_agree(problem_with(Small(), batch_size, DOUBLE))
    if batch_size >= 8:  # a norm over two nearly equal samples multiplies rounding by hundreds
        assert_agree(problem_with(Small(), batch_size), 1e-4)


@each_row("batch_size", [2, 8, 16, 17, 32, 33])
@each_row("extension", ["", "avx2", "plain"])
def test_wide_linear_layers_have_the_gradients_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, batch_size: int, extension: str
) -> None:
    """Of few samples and of many, and of more inputs than fill vectors."""
    if extension:
        use_lesser_processor(monkeypatch, extension)
    wide = [nn.Flatten(), nn.Linear(64, 43), nn.ReLU(), nn.Linear(43, 17), nn.Tanh(), nn.Linear(17, CLASSES)]
    assert_agree(problem_with(nn.Sequential(*wide), batch_size, DOUBLE))
    assert_agree(problem_with(nn.Sequential(*wide), batch_size), 1e-5)


class Functions(nn.Module):
    """Activations and pooling by functions and methods, as people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Conv2d(1, 4, (3, 5), padding="same", groups=1)
        self.depthwise = nn.Conv2d(4, 8, 3, padding="valid", groups=4)
        self.norm, self.linear = nn.LayerNorm([8, 6, 6]), nn.Linear(8 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.depthwise(F.silu(self.same(x))), approximate="tanh")
        x = F.leaky_relu(self.norm(x), 0.2) + F.elu(x, alpha=0.7).tanh()
        x = F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False, divisor_override=7).sigmoid()
        return self.linear(F.adaptive_avg_pool2d(torch.tanh(F.gelu(x)), 2).flatten(1))


class Arithmetic(nn.Module):
    """Operators between values, parameters, buffers and numbers on either side, in place and not, and layers that are
    called several times or share a weight."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.same, self.norm = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.scale, self.factor = nn.Parameter(torch.full((6, 1, 1), 0.5)), nn.Parameter(torch.tensor(0.7))
        self.register_buffer("shift", torch.linspace(1, 2, 6).view(1, 6, 1, 1))
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.linear = nn.Linear(6 * 13, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem((x - 0.3) / 2)
        for _ in range(3):
            y = F.mish(self.norm(self.same(x)))
            y *= self.scale
            x = x - y * self.factor
        gate = self.second(F.selu(self.first(x.mean((2, 3), keepdim=True).squeeze(3).squeeze(-1)))).sigmoid()
        x = gate.unsqueeze(-1).unsqueeze(-1) - F.hardswish(x).mul(3.0)
        x = F.softplus(x) / (self.shift + x * x) - 1 / (1 + F.relu6(x)) + F.hardsigmoid(-x)
        x = torch.cat([F.adaptive_max_pool2d(x, 2), F.avg_pool2d(x, 2)[:, :, :2, :2], 2 - x[:, :, :2, :2]], dim=1)
        return self.linear(F.pad(x.relu().flatten(1), (3, 3)))


@each_row("batch_size", [3, 16])
def test_arithmetic_and_layers_called_again_have_the_gradients_of_the_loop(batch_size: int) -> None:
    assert_agree(problem_with(Arithmetic(), batch_size, DOUBLE))
    assert_agree(problem_with(Arithmetic(), 16), 1e-3)


class SumsBehindNorms(nn.Module):
    """Sums behind norms, which are computed with the norm or not, and activations too large to be computed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.narrow = nn.Conv2d(1, 256, 3, padding=1), nn.Conv2d(256, 8, 1, bias=False)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList([nn.BatchNorm2d(256), *(nn.BatchNorm2d(8) for _ in range(5))])
        self.group, self.head = nn.GroupNorm(2, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.narrow(F.relu(self.norms[0](self.stem(x))))
        x = F.relu(self.norms[1](self.convs[0](x)) + x)
        x = self.norms[2](self.convs[1](x)) + self.norms[3](x)  # one norm's sum, of another norm
        x = F.gelu(x + self.group(self.convs[2](x)))
        x = self.norms[4](x) + x  # the norm and the sum read one value
        y = self.norms[5](x)
        return self.head(F.dropout((y + y).mean((2, 3)), 0.2, self.training))


@each_row("batch_size", [5, 20])
def test_sums_behind_norms_and_parts_of_a_batch_have_the_gradients_of_the_loop(batch_size: int) -> None:
    of = problem_with(SumsBehindNorms(), batch_size, DOUBLE)
    steps = network_program(of)[0].steps
    assert [step.sums for step in steps if "norm" in step.kind] == [False, True, False, True, True, True, False]
    assert_agree(of)
    assert_agree(problem_with(SumsBehindNorms(), batch_size), 1e-4)
    program = CompiledEvaluator(of, 1)._kernels._program
    assert -(-program.together // program.part) == {5: 1, 20: 3}[batch_size]


@each_row(
    ("padding", "inputs", "outputs", "batch_size"), [(0, 8, 13, 3), (1, 16, 9, 8), (2, 11, 16, 19), (1, 8, 13, 3)]
)
def test_convolutions_by_tiles_have_the_gradients_of_the_loop(
    padding: int, inputs: int, outputs: int, batch_size: int
) -> None:
    """Images of even and odd sides, whose last tiles are cut, from 8 x 8 pixels on."""
    layers = [nn.Conv2d(1, inputs, 3, padding=padding + 1), nn.Conv2d(inputs, outputs, 3, padding=padding), nn.ReLU()]
    layers += [nn.Conv2d(outputs, 10, 3, padding=1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    of = problem_with(nn.Sequential(*layers), batch_size, DOUBLE)
    assert [step.tiles for step in network_program(of)[0].steps if step.kind == "convolve"] == [False, True, True]
    assert_agree(of)
    assert_agree(problem_with(nn.Sequential(*layers), batch_size), 1e-4)


VALUES = torch.cat(
    [torch.linspace(-40, 40, 20001, dtype=torch.float64), torch.tensor([0.0, -0.0, 1e-30, 700.0, -700.0])]
)


@each_row("layer", [nn.GELU(), nn.GELU("tanh"), *(kind() for kind in IN_PLACE), *OTHERS])
@each_row(("dtype", "tolerance"), [("fp64", 1e-14), ("fp32", 5e-7)])
def test_an_activation_is_that_of_torch_over_the_whole_range(layer: nn.Module, dtype: str, tolerance: float) -> None:
    """Measured as the only thing between a weight of 1 and the logit, for arguments from -700 to 700."""
    of = problem_of(
        nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES, bias=False), layer), "batch_size=1", f"precision={dtype}"
    )
    kernels = CompiledEvaluator(of, 1)._kernels
    inputs = torch.zeros(len(VALUES), 1, 8, 8, dtype=of.dtype)
    inputs[:, 0, 0, 0] = VALUES
    x = torch.zeros(CLASSES, 64, dtype=of.dtype)
    x[:, 0] = 1
    logits = kernels.logits([x.flatten()], of.start_buffers.unsqueeze(0), inputs)[0, :, 3]
    expected = layer(inputs[:, 0, 0, 0].double())
    assert ((logits - expected).abs() <= tolerance * expected.abs().clamp(min=1)).all()


@settings(max_examples=15)
@given(module=networks(), batch_size=st.integers(2, 18))
def test_random_networks_have_the_gradients_of_the_loop(module: nn.Module, batch_size: int) -> None:
    assert_agree(problem_with(module, batch_size, DOUBLE))


def use_lesser_processor(monkeypatch: pytest.MonkeyPatch, extension: str) -> None:
    """Ask a processor to do as if it had less than it has."""
    library = compiled.kernel_library()
    assert library is not None
    if library.extension() == b"plain" != extension.encode():
        pytest.skip("no AVX2 here")

    class Lesser:
        def extension(self) -> bytes:
            return extension.encode()

        def __getitem__(self, name: str) -> ctypes._FuncPointer:  # pyright: ignore[reportPrivateUsage]
            assert name.endswith(f"_{extension}")
            return library[name]

    monkeypatch.setattr(compiled, "kernel_library", Lesser)


@pytest.mark.parametrize("extension", ["avx2", "plain"])
def test_every_kind_of_processor_has_the_same_gradients(monkeypatch: pytest.MonkeyPatch, extension: str) -> None:
    use_lesser_processor(monkeypatch, extension)
    for module in (Small(), Functions()):
        for batch_size in (3, 13):
            assert_agree(problem_with(module, batch_size, DOUBLE))
        assert_agree(problem_with(module, 13), 1e-4)


def test_accuracies_are_those_of_each_model() -> None:
    of = build_problem(experiment("model=resnet8", "nodes=3", "batch_size=5", DOUBLE))
    items = pending_gradients(of, 20)
    xs = [item.snapshot for item in items if item.snapshot is not None]
    buffers = [item.buffers for item in items]
    expected = [of.evaluate(x, own, test=True).accuracy for x, own in zip(xs, buffers, strict=True)]
    assert len(set(expected)) > 5
    assert CompiledEvaluator(of, 20).accuracies(xs, buffers) == expected


def test_what_is_no_number_stays_none() -> None:
    """A rectifier must not hide that a run diverges."""
    of = problem_with(Small(), 5)
    (item,) = pending_gradients(of, 1)
    assert item.snapshot is not None
    item.snapshot[:] = torch.nan
    evaluate("compiled", of, [[item]])
    assert item.loss is not None
    assert item.loss.isnan()


def with_a_fixed_bias() -> nn.Module:
    layer = nn.Linear(64, CLASSES)
    layer.bias.requires_grad_(False)
    return nn.Sequential(nn.Flatten(), layer)


@each_row("asked", ["auto", "compiled"])
@each_row(
    ("build", "named"),
    [
        (Normed, r"body\.2 \(RMSNorm\), which has no rule in (dsgd/gradients/\w+\.py)"),
        (Branching, r"Branching\.forward, which cannot be traced .*"),
        (with_a_fixed_bias, "a parameter that is not trained"),
    ],
)
def test_an_unknown_layer_costs_the_loop_and_a_line_that_names_layer_and_file(
    build: Callable[[], nn.Module], named: str, asked: str
) -> None:
    of = problem_with(build(), 5)
    chosen = choose_evaluator(replace(experiment("nodes=3"), gradients=asked), of)
    assert (chosen.name, chosen.instead) == ("loop", True)
    assert chosen.why is not None
    line = re.fullmatch(f"gradients: loop, because compiled does not know {named}", chosen.why)
    assert line is not None
    assert all((Path(__file__).parents[3] / file).is_file() for file in line.groups())
    items = pending_gradients(of, 3)
    chosen.evaluator.evaluate(items)
    assert all(item.value is not None for item in items)


class Summed(nn.Linear):
    """Does more than the layer that it says it is."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).cumsum(1)


class Named(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return torch.relu(input=super().forward(input))


def test_an_argument_that_is_given_by_its_name_is_not_known() -> None:
    with pytest.raises(Untranslatable, match="relu, whose first argument is given by its name"):
        CompiledEvaluator(problem_with(nn.Sequential(nn.Flatten(), Named(64, CLASSES)), 5), 3)


def test_a_module_that_does_more_than_its_layers_is_found_out() -> None:
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():  # no layer of the trace
                self.linear.weight.mul_(1.0)
            return self.linear(x.flatten(1))

    with pytest.raises(Untranslatable):
        CompiledEvaluator(problem_with(nn.Sequential(nn.Flatten(), Summed(64, CLASSES)), 5), 3)
    with pytest.raises(Untranslatable):
        CompiledEvaluator(problem_with(Changed(), 5), 3)


def test_a_label_beyond_the_classes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    of = problem_with(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), 5)
    monkeypatch.setattr(compiled, "_verify", lambda *_: None)  # which finds it, too
    evaluator = CompiledEvaluator(of, 3)
    with pytest.raises(IndexError, match=r"^a label must be >= 0 and < 4, got \d$"):
        evaluator.evaluate(pending_gradients(of, 3))


def test_without_kernels_it_is_the_loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "host" / "kernels.py"))
    compiled.kernel_library.cache_clear()
    try:
        of = problem_with(nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES)), 5)
        chosen = choose_evaluator(replace(experiment("nodes=3"), gradients="auto"), of)
        assert chosen.name == "loop"
        asked = choose_evaluator(replace(experiment("nodes=3"), gradients="compiled"), of)
        assert asked.why is not None
        assert asked.why.endswith("because compiled does not know a package whose kernels no compiler has built")
    finally:
        compiled.kernel_library.cache_clear()
