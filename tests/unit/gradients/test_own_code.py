"""Whatever a user's module does, a run trains it as a plain loop of torch would."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from dsgd.engines.dist.worker.averaging import Groups
from dsgd.engines.dist.worker.compute import Compute
from dsgd.gradients.choice import ChosenEvaluator, choose_evaluator
from dsgd.problem.problem import build_problem
from tests.support import own_modules
from tests.support.each_row import each_row
from tests.support.own_modules import ANY_WAY, LOOP, NOISE
from tests.support.simulate import experiment, simulate

STEPS, RATE = 5, 0.5
pytestmark = pytest.mark.filterwarnings("ignore")  # torch has many for what these modules do
TRACED = ("Logging", "Counting")  # in evaluation
SAME = [*(name for name in LOOP if name not in TRACED), *ANY_WAY]


def line(name: str, *more: str) -> tuple[str, ...]:
    target = f"model.target=tests.support.own_modules.{name}"
    rest = (f"budget.steps={STEPS}", "eval.every_epochs=null", f"optimizer.lr={RATE}", "optimizer.momentum=0")
    return ("model=import", target, "nodes=1", "batch_size=8", *rest, "schedule=constant", *more)


def vector(tensors: list[Tensor]) -> Tensor:
    pairs = [torch.view_as_real(of) if of.is_complex() else of for of in tensors]
    return torch.cat([torch.empty(0), *(of.detach().reshape(-1).double() for of in pairs)])


def contents(module: nn.Module) -> tuple[Tensor, Tensor]:
    """The trained parameters and all buffers, one after the other."""
    return vector([p for p in module.parameters() if p.requires_grad]), vector(list(module.buffers()))


@cache
def by_torch(name: str) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
    """The gradients of a plain loop of torch, and what the module holds at its end."""
    problem = build_problem(experiment(*line(name)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = getattr(own_modules, name)().train()
    trained = [p for p in module.parameters() if p.requires_grad]
    gradients: list[Tensor] = []
    for step in range(STEPS):
        inputs, targets = problem.data.batch(0, step)
        for p in trained:
            p.grad = None
        torch.nn.functional.cross_entropy(module(inputs), targets).backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in trained]
        gradients.append(vector(grads))
        with torch.no_grad():
            for p, g in zip(trained, grads, strict=True):
                p.sub_(g, alpha=RATE)
    return gradients, contents(module)


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", SAME)
def test_a_run_is_a_plain_loop_of_torch(name: str) -> None:
    """Simulated, and as one of four real workers: parameters, and every buffer. A line says why."""
    simulation = simulate(*line(name, "engine.gradients=auto")).simulation
    [node] = simulation.machine.nodes
    problem, (gradients, end) = simulation.problem, by_torch(name)
    problem.state.bind(node.worker.x, node.buffers)
    for found, expected in zip(contents(problem.module), end, strict=True):
        assert_same(found, expected)
    if name in LOOP:
        assert_loop(simulation.chosen, LOOP[name])
    problem = build_problem(experiment(*line(name)))
    x, buffers = problem.start.clone(), problem.start_buffers.clone()
    compute = Compute(problem, [torch.device("cpu")], Groups(0, 4))
    for step, expected in enumerate(gradients):
        g = compute.mean_gradient(x, buffers, 0, step).result()
        assert_same(4 * g.double(), expected)
        x.sub_(g, alpha=4 * RATE)
    compute.close()
    problem.state.bind(x, buffers)
    for found, expected in zip(contents(problem.module), end, strict=True):
        assert_same(found, expected)


def assert_loop(chosen: ChosenEvaluator, why: str) -> None:
    assert (chosen.name, chosen.instead) == ("loop", True)
    assert chosen.why is not None
    assert "\n" not in chosen.why
    assert re.search(f"^gradients: loop, because .*{why}", chosen.why)


@each_row("name", TRACED)
def test_a_module_whose_evaluation_leaves_traces_is_computed_by_the_loop(name: str) -> None:
    of = experiment(*line(name, "engine.gradients=auto"))
    assert_loop(choose_evaluator(of, build_problem(of)), LOOP[name])


def test_a_hook_of_all_modules_is_seen() -> None:
    of = experiment("model=mlp", "nodes=2", "engine.gradients=auto")
    handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: o)
    try:
        chosen = choose_evaluator(of, build_problem(of))
    finally:
        handle.remove()
    assert (chosen.name, chosen.why) == (
        "loop",
        "gradients: loop, because compiled does not serve hooks of all modules",
    )


@each_row("name", NOISE)
def test_random_numbers_of_any_library_depend_on_worker_and_step_alone(name: str) -> None:
    first, second = (simulate(*line(name, "engine.gradients=auto")) for _ in range(2))
    assert first.simulation.chosen.name == "loop"
    assert torch.equal(first.x, second.x)
    assert not torch.equal(first.x, simulate(*line("Two", "engine.gradients=loop")).x)


def test_another_way_in_evaluation_is_not_computed_by_the_program_of_training() -> None:
    marks = [simulate(*line("LimitedInEvaluation", f"engine.gradients={way}")).marks for way in ("auto", "loop")]
    for found, expected in zip(*marks, strict=True):
        assert found["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-5)
    assert marks[0][-1]["test_loss"] > 0
