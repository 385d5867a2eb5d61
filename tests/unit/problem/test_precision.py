"""In what arithmetic gradients are computed, by both engines: what changes is rounding, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dsgd.engines.dist.worker.averaging import Groups
from dsgd.engines.dist.worker.compute import Compute
from dsgd.problem import precision as arithmetic
from dsgd.problem.precision import prepare
from dsgd.problem.problem import Problem, build_problem
from tests.support.each_row import each_row
from tests.support.simulate import experiment

ALONE = Groups(0, 1)
CPU = torch.device("cpu")
SMALL = ["model=resnet8", "model.width=4", "nodes=2", "batch_size=6", "optimizer.weight_decay=0.01"]
# relative, of the whole gradient: 8 and 11 bits of a product, and their way through eight layers
LOWER = {"bf16": 0.2, "fp16": 0.1}

each_engine = pytest.mark.parametrize("devices", [0, 1, 2], ids=["sim", "dist", "dist, two devices"])


def gradient(of: Problem, devices: int, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Of the batch of worker 1 at its step 3, and the statistics after it. devices: of a real worker; 0: by the problem
    itself, as the simulator does."""
    x, buffers = of.start.clone() if x is None else x, of.start_buffers.clone()
    if not devices:
        return of.gradient(x, buffers, 1, 3), buffers
    compute = Compute(of, [CPU] * devices, ALONE)
    try:
        return compute.gradient(x, buffers, 1, 3).result(), buffers
    finally:
        compute.close()


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@each_engine
@each_row("precision", LOWER)
def test_lower_precision_rounds_the_gradient_of_parameters_that_stay_in_fp32(precision: str, devices: int) -> None:
    exact, _ = gradient(build_problem(experiment(*SMALL)), devices)
    of = build_problem(experiment(*SMALL, f"precision={precision}"))
    found, buffers = gradient(of, devices)
    assert {of.start.dtype, found.dtype, buffers.dtype} == {torch.float32}
    assert 1e-5 < distance(found, exact) < LOWER[precision]


class Steep(nn.Module):
    """Its gradient times 4,096 is more than fp16 can hold; times 64 it is not."""

    def __init__(self, slope: float = 300.0) -> None:
        super().__init__()
        self.slope = slope
        self.norm = nn.BatchNorm1d(64)
        self.linear = nn.Linear(64, 10)
        nn.init.normal_(self.linear.weight, std=0.01 / slope)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(self.norm(images.flatten(1)) * self.slope)


def steep(autocast: torch.dtype | None, slope: float = 300.0) -> Problem:
    whole = build_problem(experiment("nodes=2", "batch_size=6"))
    torch.manual_seed(0)
    return Problem(Steep(slope), whole.data, torch.float32, 0.01, True, autocast=autocast)


@each_engine
def test_an_overflow_of_fp16_repeats_the_pass_with_a_smaller_loss(devices: int) -> None:
    """The same gradient as without, and statistics that have seen the batch once."""
    exact, once = gradient(steep(None), devices)
    assert float(exact.abs().max()) * 4096 > torch.finfo(torch.float16).max
    found, statistics = gradient(steep(torch.float16), devices)
    assert distance(found, exact) < 0.01
    torch.testing.assert_close(statistics, once, rtol=1e-5, atol=1e-6)


@each_engine
def test_a_gradient_that_no_scale_can_hold_is_not_finite(devices: int) -> None:
    """Divergence is a result: what comes of it is not hidden."""
    of = steep(torch.float16)
    found, _ = gradient(of, devices, of.start * 1e8)
    assert not bool(found.isfinite().all())


def test_a_gradient_in_fp16_does_not_depend_on_those_before_it() -> None:
    of = steep(torch.float16)
    first, _ = gradient(of, 0)
    gradient(of, 0, of.start * 1e8)
    assert torch.equal(gradient(of, 0)[0], first)


@each_engine
def test_channels_last_changes_the_order_within_the_vector_alone(devices: int) -> None:
    overrides = [*SMALL, "precision=fp64", "optimizer.decay_norm_and_bias=false"]
    plain = build_problem(experiment(*overrides))
    other = build_problem(experiment(*overrides, "channels_last=true"))
    (expected, before), (found, after) = gradient(plain, devices), gradient(other, devices)
    assert not torch.equal(other.start, plain.start)
    scale = float(expected.abs().max())
    for here, there in zip(plain.parameters, other.parameters, strict=True):
        assert torch.equal(here.view(plain.start), there.view(other.start))
        torch.testing.assert_close(there.view(found), here.view(expected), rtol=0, atol=1e-12 * scale)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-12)
    assert other.evaluate(other.start, after, test=True) == pytest.approx(
        plain.evaluate(plain.start, before, test=True), rel=1e-12
    )


def test_channels_last_is_how_the_kernels_lie_in_memory() -> None:
    of = build_problem(experiment(*SMALL, "channels_last=true"))
    of.state.bind(of.start, of.start_buffers)
    kernels = [p for p in of.module.parameters() if p.dim() == 4]
    assert len(kernels) == 7
    assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)
    addresses = range(of.start.data_ptr(), of.start.data_ptr() + of.start.nbytes)
    assert all(kernel.data_ptr() in addresses for kernel in kernels)


@each_row("precision", ["fp32", "tf32", "fp64"])
def test_the_settings_of_a_gpu_can_be_read_whoever_asks(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch has two sets of them and raises where they differ; the compiler asks for the older one."""
    monkeypatch.setattr(arithmetic, "missing_device", lambda device: "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    try:
        prepare(precision, torch.device("cuda"))
        has = precision == "tf32"
        assert torch.backends.cuda.matmul.allow_tf32 == has
        assert torch.backends.cudnn.allow_tf32 == has
        assert (torch.backends.cudnn.conv.fp32_precision == "tf32") == has  # pyright: ignore[reportAttributeAccessIssue]
        assert (torch.backends.cuda.matmul.fp32_precision == "tf32") == has
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True


def test_an_operation_that_only_a_gpu_has_no_deterministic_form_of_is_a_warning_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arithmetic, "missing_device", lambda device: "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    try:
        for device, mode in ((CPU, 2), (torch.device("cuda"), 1)):
            torch.set_deterministic_debug_mode("error")
            prepare("fp32", device)
            assert torch.get_deterministic_debug_mode() == mode
        torch.set_deterministic_debug_mode("default")
        prepare("fp32", torch.device("cuda"))
        assert torch.get_deterministic_debug_mode() == 0  # as in real processes
    finally:
        torch.backends.cudnn.allow_tf32 = True
        torch.set_deterministic_debug_mode("default")
