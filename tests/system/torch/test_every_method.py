"""What tests/engine/torch tries in part: every method over process groups, in four processes, and compiled models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import dsgd.torch
from tests.engine.torch.test_methods import METHODS, check
from tests.engine.torch.test_own_loop import STEPS, batch, sgd
from tests.support.own_loops import in_processes


@pytest.mark.parametrize("third", range(3))
def test_every_lock_step_method_is_the_simulators_run_and_resumes_exactly(tmp_path: Path, third: int) -> None:
    check(tmp_path, [*METHODS][third::3], nodes=4)


def compiled(folder: Path, _: None) -> None:
    """torch.compile, of the module before or of the distributed model after, changes no loss."""
    losses = []
    for kind in ("plain", "before", "after"):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = sgd(module)
        given = torch.compile(module, backend="aot_eager") if kind == "before" else module
        model = dsgd.torch.distribute(given, optimizer, "sync")  # pyright: ignore[reportArgumentType]
        called = torch.compile(model, backend="aot_eager") if kind == "after" else model
        losses.append([])
        for step in range(STEPS):
            inputs, labels = batch(step)
            loss = nn.functional.cross_entropy(called(inputs[:, 0, 0]), labels)
            losses[-1].append(loss.item())
            loss.backward()
            called.step()  # pyright: ignore[reportFunctionMemberAccess]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert losses[0] == pytest.approx(losses[2], abs=1e-6)


def test_a_compiled_model_makes_the_same_steps(tmp_path: Path) -> None:
    in_processes(tmp_path, "tests.system.torch.test_every_method:compiled")
