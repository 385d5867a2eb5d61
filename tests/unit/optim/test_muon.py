"""Muon against the polynomial of its singular values, and against torch.optim.Muon."""

from __future__ import annotations

from itertools import accumulate
from math import prod

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dsgd.optim.muon import Muon, orthogonal
from dsgd.optim.optimizer import AdamW, Matrix, State
from dsgd.problem.slots import make_slots, matrices_of
from tests.support.each_row import each_row
from tests.support.simulate import simulate

SHAPES = ((5, 12), (7,), (20, 4), (3, 3), (6,))


class Tied(nn.Module):
    """A small language model, whose output layer has the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.norm = nn.Embedding(11, 4), nn.Linear(4, 4), nn.LayerNorm(4)
        self.convolution = nn.Conv1d(4, 6, 3)
        self.output = nn.Linear(4, 11)
        self.output.weight = self.embedding.weight


def vectors(count: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(sum(map(prod, SHAPES)), generator=generator, dtype=dtype) for _ in range(count)]


def places() -> list[Matrix]:
    starts = accumulate(map(prod, SHAPES), initial=0)
    return [Matrix(start, *shape) for start, shape in zip(starts, SHAPES, strict=False) if len(shape) == 2]


@each_row("shape", [(5, 12), (20, 4), (1, 6), (6, 1)])
def test_singular_vectors_stay_and_singular_values_follow_the_polynomial(shape: tuple[int, int]) -> None:
    N = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    U, values, Vh = np.linalg.svd(N.numpy(), full_matrices=False)
    values /= np.linalg.norm(values)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    assert np.abs(orthogonal(N).numpy() - U * values @ Vh).max() < 1e-13
    assert ((values > 0.6) & (values < 1.3)).all()
    assert orthogonal(torch.zeros(shape)).abs().max() == 0


@each_row("nesterov", [True, False])
def test_matrices_make_the_steps_of_torch(nesterov: bool) -> None:
    """Whose iteration is in bf16, with 8 bits."""
    mine = Muon(lr=0.01, nesterov=nesterov, weight_decay=0.1)
    start, *gradients = vectors(11, torch.float32)
    x, matrices = start.clone(), places()
    theirs = [nn.Parameter(start[at.slice].view(at.rows, at.columns).clone()) for at in matrices]
    muon = torch.optim.Muon(theirs, lr=0.01, nesterov=nesterov, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    state: State | None = None
    for g in gradients:
        for parameter, at in zip(theirs, matrices, strict=True):
            parameter.grad = g[at.slice].view(at.rows, at.columns).clone()
        muon.step()
        state = mine.step(x, g, state, 0.01, matrices)
    for parameter, at in zip(theirs, matrices, strict=True):
        moved, expected = x[at.slice] - start[at.slice], parameter.detach().flatten() - start[at.slice]
        assert (moved - expected).norm() < 0.02 * expected.norm()


def test_what_is_no_matrix_makes_the_steps_of_adamw_bit_for_bit() -> None:
    mine, adamw = Muon(weight_decay=0.1, betas=[0.8, 0.9]), AdamW(weight_decay=0.1, betas=[0.8, 0.9])
    start, *gradients = vectors(6, torch.float32)
    x, y, matrices = start.clone(), start.clone(), places()
    of_mine: State | None = None
    of_adamw: State | None = None
    for g in gradients:
        of_mine, of_adamw = mine.step(x, g, of_mine, 0.01, matrices), adamw.step(y, g, of_adamw, 0.01)
    same = torch.ones(len(x), dtype=torch.bool)
    for at in matrices:
        same[at.slice] = False
    assert torch.equal(x[same], y[same])
    assert not torch.isclose(x, y)[~same].any()
    assert of_mine is not None
    assert not of_mine.vectors["second_moment"][~same].any()


def test_embeddings_scales_and_shifts_are_no_matrices() -> None:
    module = Tied()
    slots = make_slots(module, "_parameters", lambda of: of.requires_grad)
    names = {slot.start: slot.path for slot in slots}
    found = [(names[at.start], at.rows, at.columns) for at in matrices_of(module, slots)]
    assert found == [("hidden.weight", 4, 4), ("convolution.weight", 6, 12)]


def test_a_simulated_worker_makes_the_steps_of_the_optimiser() -> None:
    """With the gradients of a plain module; and a run for its times alone has no numbers at all."""
    line = ("nodes=1", "algo=sync", "optimizer=muon", "precision=fp64", "budget.steps=3", "eval.every_epochs=null")
    simulation = simulate(*line, "schedule=constant").simulation
    problem, optimizer = simulation.problem, simulation.experiment.optimizer
    x, state = problem.start.clone(), None
    assert len(problem.matrices) == 2
    for step in range(3):
        inputs, labels = problem.data.batch(0, step)
        nn.utils.vector_to_parameters(x, problem.module.parameters())
        loss = F.cross_entropy(problem.module(inputs), labels)
        g = nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(problem.module.parameters())))
        state = optimizer.step(x, g, state, optimizer.lr, problem.matrices)
    assert float((simulation.machine.nodes[0].worker.x - x).abs().max()) < 1e-12
    assert simulate(*line, "engine.gradients=none").simulation.status == "completed"
