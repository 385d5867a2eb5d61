"""Many models as one network: the same numbers, whatever is stacked with what; and what happens where it cannot be."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dsgd.gradients import stacked
from dsgd.gradients.choice import choose_evaluator
from dsgd.gradients.pending import GradientEvaluator
from dsgd.gradients.stacked import StackedEvaluator, automatic_size, stacked_batches
from dsgd.gradients.tracing import Unstackable
from dsgd.problem.problem import Problem, build_problem
from tests.gradients.test_evaluators import assert_close, evaluate, pending_gradients
from tests.support.networks import CLASSES, KNOWN, Branching, Hooked, Mixing, Normed, modules, problem_of
from tests.support.simulate import experiment, simulate

DOUBLE = "precision=fp64"


def seeded(build: type[nn.Module] | None = None, module: nn.Module | None = None) -> nn.Module:
    """A module whose initial values are always the same; of a random network everything is drawn anew."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        made = module if build is None else build()
        assert made is not None
        for part in made.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()  # pyright: ignore[reportCallIssue]
        return made


def assert_agree(of: Problem, name: str, count: int = 5) -> None:
    """Gradients and statistics of an evaluator and of the reference, in float64, to 1e-12 of the largest entry."""
    items, expected = pending_gradients(of, count), pending_gradients(of, count)
    evaluate(name, of, [items])
    evaluate("loop", of, [expected])
    for item, right in zip(items, expected, strict=True):
        assert item.value is not None
        assert right.value is not None
        assert_close(item.value, right.value)
        assert_close(item.buffers, right.buffers)


@pytest.mark.parametrize("model", ["mlp", "resnet8", "resnet20", "resnet56"])
def test_every_model_of_the_package_has_the_gradients_of_the_loop(model: str) -> None:
    small = [] if model == "mlp" else ["model.width=2"]
    of = build_problem(experiment(f"model={model}", *small, "nodes=3", "batch_size=2", DOUBLE))
    assert_agree(of, "stacked", 3)


def test_a_vector_has_the_gradients_of_the_loop() -> None:
    for own in ("data.curvature_spread=0", "data.curvature_spread=0.5"):
        assert_agree(build_problem(experiment("experiment=quadratic", "nodes=3", own)), "stacked")


TEXT = ("model=gpt", "model.depth=1", "data=text", "data.generated_bytes=3000", "nodes=3", "batch_size=3")


@pytest.mark.parametrize("evaluator", ["stacked", "graphs"])
@pytest.mark.parametrize("sizes", [("model.width=16", "data.context=8"), ("model.width=12", "data.context=7")])
def test_a_language_model_has_the_gradients_of_the_loop(evaluator: str, sizes: tuple[str, ...]) -> None:
    """With matrices that begin where the processor likes them, and with others."""
    assert_agree(build_problem(experiment(*TEXT, *sizes, DOUBLE)), evaluator)


@pytest.mark.parametrize("sizes", [("model.width=16", "data.context=16"), ("model.width=12", "data.context=7")])
@settings(max_examples=5)
@given(data=st.data())
def test_what_is_stacked_with_what_changes_no_bit_of_a_language_model(
    sizes: tuple[str, ...], data: st.DataObject
) -> None:
    of = build_problem(experiment(*TEXT, *sizes))
    assert_composes(StackedEvaluator(of, data.draw(st.sampled_from([5, 8]))), of, data)


def test_accuracies_of_stacked_language_models_are_those_of_each() -> None:
    """Shares of all bytes, not of the windows."""
    of = build_problem(experiment(*TEXT, "model.width=16", "data.context=8", "data.generated_bytes=20000", DOUBLE))
    noise = torch.Generator().manual_seed(0)
    xs = [of.start + 0.5 * torch.randn(of.dimension, dtype=of.dtype, generator=noise) for _ in range(5)]
    buffers = [of.start_buffers] * 5
    expected = [of.evaluate(x, of.start_buffers, test=True)[1] for x in xs]
    assert len(set(expected)) > 2
    assert StackedEvaluator(of).accuracies(xs, buffers) == expected


@pytest.mark.parametrize("option", [{"padding_idx": 0}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_embeddings_with_options_are_not_stacked(option: dict[str, float]) -> None:
    of = build_problem(experiment(*TEXT, "model.width=16"))
    for name, value in option.items():
        setattr(of.module.embedding, name, value)
    with pytest.raises(Unstackable, match=r"^embedding \(Embedding\) with options$"):
        StackedEvaluator(of)


def test_a_token_beyond_the_table_is_an_error_and_not_of_the_next_model(monkeypatch: pytest.MonkeyPatch) -> None:
    of = build_problem(experiment(*TEXT, "model.width=16"))
    evaluator, pending = StackedEvaluator(of), pending_gradients(of, 2)

    def beyond(*asked: Any) -> tuple[Tensor, Tensor]:
        tokens, targets = stacked_batches(*asked)
        return tokens + 256, targets

    monkeypatch.setattr(stacked, "stacked_batches", beyond)
    with pytest.raises(IndexError, match=r"embedding \(Embedding\) has 256 rows, got token"):
        evaluator.evaluate(pending)


@pytest.mark.parametrize("name", KNOWN)
def test_a_module_of_known_layers_is_stacked_without_being_told_how(name: str) -> None:
    of = problem_of(seeded(KNOWN[name]), DOUBLE)  # pyright: ignore[reportArgumentType]
    assert_agree(of, "stacked")


@settings(max_examples=15)
@given(module=modules())
def test_random_networks_have_the_gradients_of_the_loop(module: nn.Module) -> None:
    of = problem_of(seeded(module=module), DOUBLE)
    try:
        assert_agree(of, "stacked", 3)
    except Unstackable as error:  # kernels for tiny layers may depend on where a matrix lies, which is found out before
        if "place in the stack" not in str(error):
            raise


@pytest.mark.long
@settings(max_examples=15)
@given(module=modules(), data=st.data())
def test_what_is_stacked_with_what_changes_no_bit_of_a_random_network(module: nn.Module, data: st.DataObject) -> None:
    """In float32, in any order and in groups of any size."""
    of = problem_of(seeded(module=module))
    try:
        evaluator = StackedEvaluator(of, data.draw(st.sampled_from([3, 5, 8, 12])))
    except Unstackable:  # found out before a run: kernels for tiny layers may depend on where a matrix lies
        reject()
    assert_composes(evaluator, of, data)


def assert_composes(evaluator: GradientEvaluator, of: Problem, data: st.DataObject) -> None:
    """Each gradient is the same to the bit alone and with others."""
    count = 13
    alone = pending_gradients(of, count)
    for item in alone:
        evaluator.evaluate([item])
    order = data.draw(st.permutations(range(count)))
    cuts = sorted(data.draw(st.sets(st.integers(1, count - 1))))
    together = pending_gradients(of, count)
    for begin, end in pairwise([0, *cuts, count]):
        evaluator.evaluate([together[index] for index in order[begin:end]])
    for one, other in zip(alone, together, strict=True):
        assert one.value is not None
        assert other.value is not None
        assert torch.equal(one.value, other.value)
        assert torch.equal(one.buffers, other.buffers)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Softplus])
def test_the_end_of_a_vector_loop_is_like_its_middle(activation: type[nn.Module]) -> None:
    """What is left over for the scalar code there is 15 numbers of 5 models with 1 feature each."""
    layers = [nn.Flatten(), nn.Linear(64, 1), activation(), nn.Linear(1, CLASSES)]
    of = problem_of(seeded(module=nn.Sequential(*layers)))
    evaluator = StackedEvaluator(of, 5)
    alone, together = pending_gradients(of, 40), pending_gradients(of, 40)
    for item in alone:
        evaluator.evaluate([item])
    evaluator.evaluate(together)
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.value, other.value)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("build", "named"), [(Normed, "body.2 (RMSNorm)"), (Mixing, "mean"), (Hooked, "linear (Linear)")]
)
def test_what_cannot_be_stacked_is_named(build: type[nn.Module], named: str) -> None:
    with pytest.raises(Unstackable, match=r".") as caught:
        StackedEvaluator(problem_of(seeded(build)))
    assert named in str(caught.value)


@pytest.mark.parametrize("asked", ["auto", "stacked"])
@pytest.mark.parametrize(
    ("build", "named"),
    [
        (Normed, r"body\.2 \(RMSNorm\), which has no rule in (dsgd/gradients/\w+\.py)"),
        (Branching, r"Branching\.forward, which cannot be traced .*"),
    ],
)
def test_an_unknown_layer_costs_the_loop_and_a_line_that_names_layer_and_file(
    build: type[nn.Module], named: str, asked: str
) -> None:
    of = problem_of(seeded(build))
    chosen = choose_evaluator(replace(experiment("nodes=3"), gradients=asked), of)
    assert (chosen.name, chosen.instead) == ("loop", True)
    assert chosen.why is not None
    line = re.fullmatch(f"gradients: loop, because stacked does not know {named}", chosen.why)
    assert line is not None
    assert all((Path(__file__).parents[2] / file).is_file() for file in line.groups())
    items = pending_gradients(of, 3)
    chosen.evaluator.evaluate(items)
    assert all(item.value is not None for item in items)


@pytest.mark.parametrize("stack_size", [1, 4])
def test_memory_is_bounded_by_the_size_of_a_stack(stack_size: int) -> None:
    """What the backward pass keeps does not grow with the number of gradients that are pending_gradients."""
    of = build_problem(experiment("model=resnet8", "model.width=4", "nodes=3", "batch_size=5"))
    evaluator = StackedEvaluator(of, stack_size)

    def kept(count: int) -> int:
        peak, alive = 0, 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal peak, alive
            alive += tensor.numel()
            peak = max(peak, alive)
            return tensor

        def unpack(tensor: Tensor) -> Tensor:
            nonlocal alive
            alive -= tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            evaluator.evaluate(pending_gradients(of, count))
        return peak

    few = kept(stack_size)
    assert few > 0
    assert kept(8 * stack_size) <= 1.5 * few  # batch norm's saved statistics are not all unpacked by way of hooks


@pytest.mark.parametrize(
    ("activation_bytes", "threads", "models"),
    [(1, 1, 128), (64 << 10, 1, 32), (64 << 10, 2, 16), (64 << 10, 64, 4), (128 << 10, 1, 16), (1 << 30, 1, 4)],
)
def test_the_automatic_size_keeps_activations_in_the_cache(activation_bytes: int, threads: int, models: int) -> None:
    assert automatic_size(activation_bytes, threads) == models


@pytest.mark.parametrize("name", ["stacked", "loop"])
def test_a_batch_that_a_data_set_serves_alone_is_served_together(name: str) -> None:
    """Data that know of single batches only: stacked by the evaluator."""

    class Plain:
        def __init__(self, data: object) -> None:
            self._data = data

        def __getattr__(self, key: str) -> object:
            if key in ("batches", "losses"):
                raise AttributeError(key)
            return getattr(self._data, key)

    whole = problem_of(seeded(KNOWN["tied"]), DOUBLE)  # pyright: ignore[reportArgumentType]
    plain = Problem(whole.module, Plain(whole.data), torch.float64, 0.0, True)  # pyright: ignore[reportArgumentType]
    items, expected = pending_gradients(plain, 4), pending_gradients(whole, 4)
    evaluate(name, plain, [items])
    evaluate("loop", whole, [expected])
    for item, right in zip(items, expected, strict=True):
        assert_close(item.value, right.value)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "overrides", [["data=digits"], ["experiment=quadratic", "data.dim=4"], ["data=text", "model=gpt"]]
)
def test_batches_are_the_single_ones_to_the_bit(overrides: list[str]) -> None:
    data = build_problem(experiment(*overrides, "nodes=5")).data
    ranks, steps = [4, 0, 2, 2], [7, 300, 0, 31]
    inputs, targets = data.batches(ranks, steps)  # pyright: ignore[reportAttributeAccessIssue]
    for row, (rank, step) in enumerate(zip(ranks, steps, strict=True)):
        expected = data.batch(rank, step)
        assert torch.equal(inputs[row], expected[0])
        assert torch.equal(targets[row], expected[1])


def test_augmented_batches_are_the_single_ones_to_the_bit() -> None:
    data = build_problem(experiment("nodes=5")).data
    data.augment = True  # pyright: ignore[reportAttributeAccessIssue]
    inputs, targets = data.batches([4, 1], [3, 90])  # pyright: ignore[reportAttributeAccessIssue]
    for row, (rank, step) in enumerate([(4, 3), (1, 90)]):
        assert torch.equal(inputs[row], data.batch(rank, step)[0])
        assert torch.equal(targets[row], data.batch(rank, step)[1])


@pytest.mark.parametrize("model", [["model=mlp"], ["model=resnet8", "model.width=4"]])
def test_accuracies_of_stacked_models_are_those_of_each(model: list[str]) -> None:
    of = build_problem(experiment(*model, "nodes=3", DOUBLE))
    items = pending_gradients(of, 5)
    xs, buffers = [item.snapshot for item in items], [item.buffers for item in items]
    expected = [of.evaluate(x, statistics, test=True)[1] for x, statistics in zip(xs, buffers, strict=True)]  # pyright: ignore
    assert StackedEvaluator(of).accuracies(xs, buffers) == expected  # pyright: ignore[reportArgumentType]


SMALL_DEMO = ("experiment=slow_network", "engine=sim", "budget.time_s=0.4", "eval.every_time_s=0.1", "nodes=4")
MEASURED = ("train_loss", "test_loss", "consensus_distance")


@pytest.mark.parametrize("algo", ["sync", "easgd", "gossip"])
def test_the_record_is_the_same_whichever_evaluator_ran(algo: str) -> None:
    """Virtual time to the bit, what was measured to float32's tolerance."""
    loop, other = (simulate(*SMALL_DEMO, f"algo={algo}", f"engine.gradients={name}") for name in ("loop", "stacked"))
    for field in ("time_s", "samples", "bytes_sent", "idle_fraction_mean", "staleness_mean"):
        assert other.values(field) == loop.values(field)
    for field in MEASURED:
        assert other.values(field) == pytest.approx(loop.values(field), rel=1e-3, abs=1e-5)
    assert other.values("test_accuracy") == pytest.approx(loop.values("test_accuracy"), abs=2 / 360)


def test_the_same_run_gives_the_same_bits_again() -> None:
    options = ("model=resnet8", "model.width=4", "nodes=3", "budget.epochs=0.2", "engine=sim", "algo=gossip")
    one, other = (simulate(*options, "engine.gradients=stacked") for _ in range(2))
    assert one.marks == other.marks
    assert torch.equal(one.x, other.x)
