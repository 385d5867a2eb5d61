"""Where a simulation computes if nothing is said: on a GPU only what is large enough for one."""

from __future__ import annotations

import pytest
import torch

from dsgd.gradients import choice
from dsgd.gradients.choice import choose_evaluator, device_of_auto
from dsgd.host import devices
from dsgd.host.gpu_facts import chosen_device
from dsgd.problem.problem import build_problem
from tests.support.each_row import each_row
from tests.support.simulate import experiment

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@each_row(
    ("line", "expected"),
    [
        (["model=mlp", "model.hidden=[128]"], CPU),
        (["model=resnet20"], CUDA),
        (["model=mlp", "model.hidden=[16]", "precision=tf32"], CUDA),  # which no CPU has
    ],
)
def test_auto_takes_the_gpu_for_large_models(line: list[str], expected: torch.device) -> None:
    of = experiment(*line, "nodes=2")
    assert device_of_auto(build_problem(of), of.precision, CUDA) == expected


def test_a_small_network_is_computed_by_the_kernels_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "chosen_device", lambda name: CUDA)
    of = experiment("model=mlp", "nodes=2", "engine.gradients=auto")
    assert choose_evaluator(of, build_problem(of)).evaluator.device == CPU


def test_a_gpu_with_a_name_of_mig_is_seen_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once begun here, CUDA could not be used by processes that are forked of this one."""

    def begun() -> int:
        raise AssertionError("CUDA has begun")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: CUDA)
    monkeypatch.setattr(torch.cuda, "is_available", begun)
    monkeypatch.setattr(devices, "visible_gpus", lambda environment: 1)
    assert chosen_device("auto") == CUDA
