"""In what arithmetic gradients are computed, by both engines: what changes is rounding, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor

from dsgd.engines.dist.worker.averaging import Groups
from dsgd.engines.dist.worker.compute import Compute
from dsgd.gradients import choice
from dsgd.gradients.choice import choose_evaluator
from dsgd.problem.precision import Unsuitable, prepare, tolerate_missing
from dsgd.problem.problem import Problem, build_problem
from tests.support.command import call
from tests.support.simulate import experiment, simulate

ALGORITHMS = ("sync", "easgd", "downpour", "gossip", "dpsgd", "delayfree")
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
@pytest.mark.parametrize("precision", LOWER)
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


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_learns_the_same_in_fp16(algo: str) -> None:
    line = ["nodes=2", "model.hidden=[16]", "budget.epochs=1", f"algo={algo}", "optimizer.lr=0.05"]
    exact, found = (simulate(*line, f"precision={name}").values("train_loss") for name in ("fp32", "fp16"))
    assert found[-1] < 0.9 * found[0]
    assert found == pytest.approx(exact, rel=1e-3)


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


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["precision=bf16"], "gradients: loop, because precision=bf16 is for one model at a time"),
        (["channels_last=true"], "gradients: loop, because channels_last=true is for one model at a time"),
        (["precision=bf16", "engine.gradients=loop"], None),
    ],
)
def test_the_simulator_says_why_kernels_do_not_serve(
    overrides: Sequence[str], why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "bf16_is_there", lambda: False)
    of = experiment("nodes=2", "batch_size=6", *overrides)
    chosen = choose_evaluator(of, build_problem(of))
    assert (chosen.name, chosen.why) == ("loop", why)


def test_what_a_device_cannot_do_is_one_line() -> None:
    for precision in ("fp32", "fp64", "bf16", "fp16"):
        prepare(precision, CPU)
    with pytest.raises(Unsuitable, match=r"^precision must be fp32, fp64, bf16 or fp16 on a CPU, got tf32"):
        prepare("tf32", CPU)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp64"])
def test_the_settings_of_a_gpu_can_be_read_whoever_asks(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch has two sets of them and raises where they differ; the compiler asks for the older one."""
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


def test_an_operation_that_only_a_gpu_has_no_deterministic_form_of_is_a_warning_there() -> None:
    try:
        for device, mode in ((CPU, 2), (torch.device("cuda"), 1)):
            torch.set_deterministic_debug_mode("error")
            tolerate_missing(device)
            assert torch.get_deterministic_debug_mode() == mode
    finally:
        torch.set_deterministic_debug_mode("default")


def test_a_run_of_a_precision_that_the_device_cannot_do_ends_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("precision=tf32", "engine=sim", "engine.device=cpu", "hydra.run.dir=run")
    assert result.status == 2
    assert result.err == "precision must be fp32, fp64, bf16 or fp16 on a CPU, got tf32, which only GPUs have\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.long
@pytest.mark.skipif(" " in torch.__file__, reason="torch.compile does not quote the path of its own libraries")
@inductor.patch({"compile_threads": 1})  # others would be processes that import torch once more
@pytest.mark.filterwarnings("ignore")  # what the compiler has to say of itself
def test_a_compiled_module_gives_the_same_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By both engines, at other points and with other statistics than when it was compiled. Without a compiler there is
    one line."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    line = ["nodes=2", "batch_size=6", "compile=true"]
    of = experiment(*line, "model.hidden=[8]")
    with (
        inductor.patch({"cpp.cxx": (None, "/bin/false")}),
        pytest.raises(Unsuitable, match=r"^compile must be false, torch\.compile fails for Sequential: .*/bin/false"),
    ):
        choose_evaluator(of, build_problem(of))
    of = experiment(*line, "model.hidden=[]")  # a product alone, which needs no new code: that takes a minute
    plain = build_problem(experiment(*line[:2], "model.hidden=[]"))
    chosen = choose_evaluator(of, compiled := build_problem(of))
    assert chosen.why == "gradients: loop, because compile=true is for one model at a time"
    for devices in (0, 1):
        for x in (plain.start, 2 * plain.start):
            assert distance(gradient(compiled, devices, x)[0], gradient(plain, devices, x)[0]) < 1e-5
