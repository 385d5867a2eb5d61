from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dsgd.gradients.compiled import CompiledEvaluator
from dsgd.gradients.device_graphs import GraphEvaluator
from dsgd.gradients.evaluators import GradientEvaluator, LoopEvaluator, PendingGradient
from dsgd.problem.problem import Problem, build_problem, without_single
from tests.support.each_row import each_row
from tests.support.kernels import require_kernels
from tests.support.simulate import experiment

EXACT = 1e-12  # of float64, relative to the largest entry
RANKS = 3
MODELS = {
    "mlp": ["model=mlp", "model.hidden=[16]"],
    "resnet8, batch norm": ["model=resnet8", "model.width=4"],
    "resnet8, group norm": ["model=resnet8", "model.width=4", "model.norm=group"],
}
EVALUATORS = ["loop", "compiled", "graphs"]

each_model = each_row("model", MODELS)
each_evaluator = pytest.mark.parametrize("evaluator", EVALUATORS)


@cache
def problem(model: str, *overrides: str) -> Problem:
    return build_problem(experiment(*MODELS[model], f"nodes={RANKS}", "batch_size=5", *overrides))


def pending_gradients(of: Problem, count: int) -> list[PendingGradient]:
    """Gradients of several workers and steps, each at its own point and with its own statistics."""
    noise = torch.Generator().manual_seed(7)
    found = []
    for index in range(count):
        x = of.start + 0.05 * torch.randn(of.dimension, generator=noise, dtype=of.dtype)
        buffers, numbers = of.start_buffers.clone(), of.state.numbers
        buffers[:numbers] += torch.rand(numbers, generator=noise, dtype=of.dtype)
        found.append(PendingGradient(index % RANKS, index // RANKS, x, buffers))
    return found


def evaluator_of(name: str, of: Problem) -> GradientEvaluator:
    if name == "compiled":
        require_kernels()
        return CompiledEvaluator(of, nodes=8)
    if name == "graphs":
        return GraphEvaluator(of, torch.device("cpu"))
    return LoopEvaluator(of)


def evaluate(name: str, of: Problem, groups: Sequence[Sequence[PendingGradient]]) -> None:
    evaluator = evaluator_of(name, of)
    for group in groups:
        evaluator.evaluate(group)


def own_module(of: Problem, x: Tensor, buffers: Tensor) -> nn.Module:
    """A module by itself, set up by torch's own means: nothing shared with the problem's."""
    module = copy.deepcopy(of.module)
    for parameter in module.parameters():
        parameter.data, parameter.grad = parameter.data.clone(), None
    vector_to_parameters(x.clone(), module.parameters())
    left = buffers.clone()
    for numbers in (True, False):  # the others are counters, whose bytes come after the numbers
        for buffer in module.buffers():
            if buffer.is_floating_point() == numbers:
                size = buffer.numel() if numbers else buffer.nbytes
                part = left[:size] if numbers else left[:size].to(torch.uint8).view(buffer.dtype)
                buffer.data = part.view(buffer.shape).clone()
                left = left[size:]
    assert not left.numel()
    return module


def statistics(module: nn.Module) -> Tensor:
    flat = [buffer.reshape(-1) for buffer in module.buffers() if buffer.is_floating_point()]
    counters = [buffer.reshape(1).view(torch.uint8) for buffer in module.buffers() if not buffer.is_floating_point()]
    return torch.cat([*flat, *(counter.to(flat[0].dtype) for counter in counters)]) if flat else torch.empty(0)


def reference(of: Problem, item: PendingGradient, decay: float = 0.0, decays_all: bool = True) -> tuple[Tensor, Tensor]:
    """Plain autograd of loss + decay / 2 |x|^2, and the statistics after the forward pass."""
    assert item.snapshot is not None
    module = own_module(of, item.snapshot, item.buffers).train()
    inputs, targets = of.data.batch(item.rank, item.step)
    loss = nn.functional.cross_entropy(module(inputs), targets)
    decaying = [p for p in module.parameters() if decays_all or p.dim() > 1]  # biases and norms are vectors
    loss = loss + decay / 2 * sum(p.square().sum() for p in decaying)
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    return parameters_to_vector(gradients), statistics(module)


def assert_close(found: Tensor, expected: Tensor, tolerance: float = EXACT) -> None:
    assert found.shape == expected.shape
    if expected.numel():
        assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


@each_model
@each_evaluator
def test_gradients_and_statistics_are_those_of_plain_autograd(model: str, evaluator: str) -> None:
    of = problem(model, "precision=fp64")
    items = pending_gradients(of, 10)
    expected = [reference(of, item) for item in items]
    evaluate(evaluator, of, [items])
    for item, (g, buffers) in zip(items, expected, strict=True):
        assert item.snapshot is None
        assert item.value is not None
        assert_close(item.value, g)
        assert_close(item.buffers, buffers)


@each_model
@each_evaluator
@each_row("decays_all", [True, False])
def test_weight_decay_acts_where_the_gradient_was_taken(model: str, evaluator: str, decays_all: bool) -> None:
    """g + decay x, on all parameters or on all but biases and normalisation."""
    option = f"optimizer.decay_norm_and_bias={str(decays_all).lower()}"
    of = problem(model, "precision=fp64", "optimizer.weight_decay=0.1", option)
    items = pending_gradients(of, 3)
    expected = [reference(of, item, 0.1, decays_all)[0] for item in items]
    evaluate(evaluator, of, [items])
    for item, g in zip(items, expected, strict=True):
        assert item.value is not None
        assert_close(item.value, g)


@each_model
@each_evaluator
def test_statistics_share_no_memory(model: str, evaluator: str) -> None:
    """A worker changes its statistics in place in the next forward pass: nobody else's may change with them."""
    of = problem(model)
    start = (of.start.clone(), of.start_buffers.clone())
    items = pending_gradients(of, 9)
    evaluate(evaluator, of, [items])
    memory = [item.buffers.untyped_storage().data_ptr() for item in items if item.buffers.numel()]
    assert len(set(memory)) == len(memory)
    assert torch.equal(of.start, start[0])
    assert torch.equal(of.start_buffers, start[1])


@each_model
@each_row("test", [True, False])
@each_row("limit", [None, 100, 1100])
def test_evaluation_is_the_mean_over_the_set(model: str, test: bool, limit: int | None) -> None:
    """Whatever the forward passes are cut into: the last one is shorter."""
    of = problem(model, "precision=fp64")
    [item] = pending_gradients(of, 1)
    assert item.snapshot is not None
    loss, _, accuracy, top5 = of.evaluate(item.snapshot, item.buffers, test, limit)
    inputs, labels = (whole[:limit] for whole in (of.data.test_set if test else of.data.train_set))
    with torch.no_grad():
        outputs = own_module(of, item.snapshot, item.buffers).eval()(inputs)
    assert loss == pytest.approx(float(nn.functional.cross_entropy(outputs, labels)), rel=EXACT)
    assert accuracy == pytest.approx(float((outputs.argmax(dim=1) == labels).double().mean()), rel=1e-15)
    beaten_by = (outputs > outputs.gather(1, labels[:, None])).sum(dim=1)
    assert top5 == pytest.approx(float((beaten_by < 5).double().mean()), rel=1e-15)


def test_five_classes_or_fewer_have_no_top5() -> None:
    """Among five of five is every label. Equal outputs are in order."""
    for classes, has in ((5, False), (6, True)):
        of = build_problem(experiment("nodes=2", "data=shapes", f"data.classes={classes}", "data.test_size=120"))
        found = of.evaluate(torch.zeros(of.dimension), of.start_buffers, test=True)
        labels = of.data.test_set[1]
        assert found.accuracy == pytest.approx(float((labels == 0).double().mean()))
        assert found.top5 == (pytest.approx(float((labels < 5).double().mean())) if has else None)


@each_model
def test_evaluation_changes_neither_model_nor_statistics(model: str) -> None:
    of = problem(model)
    [item] = pending_gradients(of, 1)
    assert item.snapshot is not None
    x, buffers = item.snapshot.clone(), item.buffers.clone()
    first = of.evaluate(x, buffers, test=True)
    of.recalibrated(x, 64)
    assert of.evaluate(x, buffers, test=True) == first
    assert torch.equal(x, item.snapshot)
    assert torch.equal(buffers, item.buffers)


@each_row("limit", [None, 64])
def test_recalibrated_statistics_are_the_plain_average_over_batches(limit: int | None) -> None:
    """Batches of 1,024: of digits' 1,437 training images one whole and one shorter batch, of 64 only one."""
    of = problem("resnet8, batch norm", "precision=fp64")
    [item] = pending_gradients(of, 1)
    assert item.snapshot is not None
    inputs = of.data.train_set[0][:limit]
    found = []
    for batch in inputs.split(1024):
        module = own_module(of, item.snapshot, item.buffers).train()
        for norm in module.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.momentum = 1.0  # keeps this batch's statistics alone
        module(batch)
        found.append(statistics(module).detach())
    assert len(found) == (2 if limit is None else 1)
    numbers = sum(buffer.numel() for buffer in of.module.buffers() if buffer.is_floating_point())
    recalibrated, each = of.recalibrated(item.snapshot, limit), torch.stack(found)
    assert_close(recalibrated[:numbers], each[:, :numbers].mean(dim=0))
    assert torch.equal(recalibrated[numbers:], each[:, numbers:].sum(dim=0))  # counters of batches
    momenta = {norm.momentum for norm in of.module.modules() if isinstance(norm, nn.BatchNorm2d)}
    assert momenta == {0.1}


@each_row("counts", [[4, 1], [3, 4, 1], [1], [4, 4], [1, 1]])
def test_statistics_are_recalibrated_in_batches_of_more_than_one_sample(counts: list[int]) -> None:
    """A last sample that is left over is normalised with the batch before it; all samples are seen once, in order."""
    samples = torch.arange(float(sum(counts)))
    found = list(without_single(samples.split(counts)))
    assert torch.equal(torch.cat(found), samples)
    assert len(found[-1]) > 1 or len(samples) == 1
    assert len(found) == len(counts) - (counts[-1] == 1 and len(counts) > 1)


def test_building_a_problem_leaves_the_global_random_stream_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = build_problem(experiment(*MODELS["mlp"], "seed=1"))
    second = build_problem(experiment(*MODELS["mlp"], "seed=1"))
    other = build_problem(experiment(*MODELS["mlp"], "seed=2"))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.start, second.start)
    assert not torch.equal(first.start, other.start)


@each_row("overrides", [["data=digits"], ["experiment=quadratic", "data.dim=4"], ["data=text", "model=gpt"]])
def test_batches_are_the_single_ones_to_the_bit(overrides: list[str]) -> None:
    data = build_problem(experiment(*overrides, "nodes=5")).data
    ranks, steps = [4, 0, 2, 2], [7, 300, 0, 31]
    inputs, targets = data.batches(ranks, steps)  # pyright: ignore[reportAttributeAccessIssue]
    for row, (rank, step) in enumerate(zip(ranks, steps, strict=True)):
        expected = data.batch(rank, step)
        assert torch.equal(inputs[row], expected[0])
        assert torch.equal(targets[row], expected[1])
