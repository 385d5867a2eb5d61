"""A run can also evaluate its output model on equal parts of the test set, and changes nothing by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dsgd.data.in_memory import QuadraticData
from dsgd.data.protocols import evaluation_batches
from dsgd.problem.evaluation import FOLD_FIELDS, FOLDS, check_folds, evaluate_folds
from dsgd.problem.problem import build_problem
from tests.support.command import call, marks, summary
from tests.support.each_row import each_row
from tests.support.simulate import experiment, simulate

SHAPES = ("data=shapes", "data.resolution=8", "data.train_size=320", "data.test_size=1500", "model.hidden=[8]")
RUN = ("algo=gossip", "nodes=4", *SHAPES, "budget.steps=20", "cluster.gradient_s=0.01")
TEXT = ("data=text", "model=gpt", "model.width=8", "data.generated_bytes=48100", "data.context=16")


def test_a_run_writes_the_parts_beside_an_unchanged_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test set is more than one evaluation batch, whose ends are none of the parts'."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("without", "false"), ("with", "true")):
        assert call(*RUN, f"eval.test_folds={value}", f"hydra.run.dir={name}").status == 0
    plain, whole = summary(tmp_path / "without"), summary(tmp_path / "with")
    losses, accuracies = (whole.pop(field) for field in FOLD_FIELDS)
    assert marks(tmp_path / "with") == marks(tmp_path / "without")
    assert whole == plain
    assert len(losses) == len(accuracies) == FOLDS
    assert np.mean(losses) == pytest.approx(whole["test_loss"], rel=1e-6)
    assert np.mean(accuracies) == pytest.approx(whole["test_accuracy"], rel=1e-12)
    assert np.std(losses) > 0


@each_row("case", [(*SHAPES, "data.test_size=200"), TEXT])
def test_each_part_is_evaluated_as_its_samples_alone(case: tuple[str, ...]) -> None:
    problem = build_problem(experiment(*case, "precision=fp64", "nodes=2"))
    inputs, labels = map(torch.cat, zip(*evaluation_batches(problem.data, test=True), strict=True))
    check_folds(problem)
    found = evaluate_folds(problem, problem.start, problem.start_buffers)
    assert list(found) == list(FOLD_FIELDS)
    size = len(inputs) // FOLDS
    parts = zip(inputs.split(size), labels.split(size), *(values or [] for values in found.values()), strict=True)
    for own, right, *measured in parts:
        with torch.no_grad():
            outputs = problem.module(own)
        accuracy = (outputs.argmax(1) == right).double().mean()
        assert measured == pytest.approx([float(problem.data.loss(outputs, right)), float(accuracy)], rel=1e-9)


def test_data_without_classes_have_no_accuracies() -> None:
    """One objective a hundred times is as large in every part."""
    problem = build_problem(experiment("experiment=quadratic"))
    assert isinstance(problem.data, QuadraticData)
    inputs, targets = problem.data.test_set
    problem.data.test_set = inputs.expand(FOLDS, -1), targets.expand(FOLDS, -1, -1)
    found = evaluate_folds(problem, problem.start, problem.start_buffers)
    loss = problem.evaluate(problem.start, problem.start_buffers, test=True).loss
    assert found == {"test_fold_losses": pytest.approx([loss] * FOLDS), "test_fold_accuracies": None}


def test_there_are_none_without_gradients_and_of_a_run_that_diverged() -> None:
    assert not simulate(*RUN, "budget.steps=2").summary.keys() & set(FOLD_FIELDS)
    for change in ("engine.gradients=none", "optimizer.lr=1e30"):
        found = simulate(*RUN, "eval.test_folds=true", "budget.steps=5", change).summary
        assert [found[field] for field in FOLD_FIELDS] == [None, None]


def test_it_needs_a_test_set_of_equal_parts() -> None:
    with pytest.raises(
        ValueError, match=r"^eval\.test_folds must be false unless 100 divides the test samples, got 150 "
    ):
        simulate(*RUN, "eval.test_folds=true", "data.test_size=150")
